from __future__ import annotations

import pytest

from harness.process.broker_process import free_port
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.reachability import parse_address, require_broker


def test_addresses() -> None:
    assert parse_address("host:1") == ("host", 1)
    assert parse_address("[::1]:9092") == ("::1", 9092)
    assert parse_address("host", 15002) == ("host", 15002)
    assert parse_address("host:x") == ("host", 0)


def test_one_broker_that_listens_is_enough(broker: str) -> None:
    require_broker(f"127.0.0.1:{free_port()}, PLAINTEXT://{broker}")


def test_no_broker_listens() -> None:
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(CommandError, match=f"no response from {servers}") as raised:
        require_broker(servers)
    assert raised.value.code is ExitCode.NO_CONNECTION
