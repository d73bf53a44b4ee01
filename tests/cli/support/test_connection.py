from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.testing.secure_broker import SecureBroker

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("topic", "create", "t"),
        ("topic", "describe", "t"),
        ("produce", "t", "x"),
        ("consume", "t", "--no-follow"),
    ],
)
def test_an_unreachable_broker(run: Run, command: tuple[str, ...]) -> None:
    outcome = run(*command, "-b", "127.0.0.1:1")
    assert outcome.code == 4, outcome
    assert outcome.out == ""
    assert outcome.error.startswith("error: no response from 127.0.0.1:1: ")
    assert "refused" in outcome.error
    assert "millstream serve" in outcome.error
    assert outcome.error.endswith("\nSee: millstream docs errors#no-connection\n")
    assert outcome.error.count("\n") == 2


def test_a_listener_with_tls(run: Run, tmp_path: Path) -> None:
    with SecureBroker(tmp_path) as broker:
        outcome = run("topic", "list", "-b", broker.bootstrap_servers, "--timeout", "1s")
    assert outcome.code == 4, outcome
    assert "-X security.protocol=SSL or SASL_SSL" in outcome.error


def test_a_client_property_that_does_not_exist(run: Run) -> None:
    outcome = run("topic", "list", "-X", "no.such.property=1")
    assert outcome.code == 2
    assert "no.such.property" in outcome.error


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c=", "a=2"], "-c") == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pair", ["", "a", "=1", " =1"])
def test_a_malformed_pair_is_a_usage_error(pair: str) -> None:
    with pytest.raises(CommandError, match="--config") as caught:
        parse_pairs([pair], "--config")
    assert caught.value.code is ExitCode.USAGE
