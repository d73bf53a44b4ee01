"""The health check of containers, against real brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.broker_process import HOST, BrokerProcess, wait_until
from millstream.process.readiness import listens
from millstream.security.local_authority import LocalAuthority

TOKEN = "s3cret"


def check(*arguments: object, **variables: object) -> tuple[int, str]:
    given = {f"MILLSTREAM_HTTP_{name}": str(value) for name, value in variables.items()}
    result = subprocess.run(
        [sys.executable, "-m", "millstream.process.health_check", *map(str, arguments)],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker whose pages need a token."""
    folder = tmp_path_factory.mktemp("broker")
    with BrokerProcess(folder, settings={"http.bearer.token": TOKEN}) as broker:
        yield broker.http_url


def test_a_broker_is_healthy_until_it_stops(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        url = broker.http_url
        assert check(f"{url}/readyz") == (0, "ready\n")
        code, text = check(f"{url}/nowhere")
        assert code == 1
        assert text.startswith("try /metrics")
        broker.stop()
        code, text = check(f"{url}/readyz")
        assert code == 1
        assert text.startswith(f"no response from {url}/readyz: ")


def test_the_token_is_in_a_file_or_in_the_variables_of_the_broker(
    with_token: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    url = f"{with_token}/readyz"
    assert check(url, token) == (0, "ready\n")
    assert check(url, BEARER_TOKEN_FILE=token) == (0, "ready\n")
    assert check(url, BEARER_TOKEN=TOKEN) == (0, "ready\n")
    assert check(url, tmp_path / "none")[0] == 1
    token.write_text("wrong")
    code, text = check(url, token)
    assert code == 1
    assert text.startswith("send `Authorization: Bearer TOKEN`")


def test_a_secure_broker_without_a_token_is_healthy_while_it_runs(with_token: str) -> None:
    assert check(f"{with_token}/readyz") == (0, "ok\n")


class HttpsBroker(BrokerProcess):
    """A broker whose start is not awaited by HTTP."""

    def is_ready(self) -> bool:
        return listens(HOST, self.http_port)


def test_a_broker_that_speaks_https(tmp_path: Path) -> None:
    LocalAuthority.open_or_create(tmp_path / "tls").issue("broker", hosts=("broker-1",), days=2)
    key_store = tmp_path / "tls" / "broker.pem"
    with HttpsBroker(tmp_path, settings={"http.ssl.keystore.location": key_store}) as broker:
        url = f"http://{HOST}:{broker.http_port}/readyz"
        wait_until(
            lambda: check(url, SSL_KEYSTORE_LOCATION=key_store) == (0, "ready\n"), "a ready broker"
        )
        assert check(url)[0] == 1


def test_without_a_url_the_usage_is_printed() -> None:
    usage = "usage: python -m millstream.process.health_check URL [TOKEN-FILE]\n"
    assert check() == (2, usage)
