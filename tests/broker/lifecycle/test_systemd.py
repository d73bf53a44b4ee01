"""Notifications to systemd, received on a real datagram socket."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess
from millstream.broker.lifecycle.systemd import Systemd

WAIT_S_MAX = 60.0


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.settimeout(WAIT_S_MAX)
        bound.bind(str(tmp_path / "notify"))
        yield bound


def received(receiver: socket.socket) -> dict[str, str]:
    lines = receiver.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


class NotifyingBroker(BrokerProcess):
    """A broker that systemd started. `given` are the variables that systemd sets."""

    given: Mapping[str, str]

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **self.given}


def test_a_broker_reports_its_start_its_life_and_its_shutdown(
    tmp_path: Path, receiver: socket.socket
) -> None:
    broker = NotifyingBroker(tmp_path)
    broker.given = {"NOTIFY_SOCKET": receiver.getsockname(), "WATCHDOG_USEC": "100000"}
    with broker:
        assert received(receiver) == {"READY": "1", "STATUS": "broker 1 serves clients"}
        for _ in range(3):
            assert received(receiver) == {"WATCHDOG": "1"}
        broker.terminate()
        while (message := received(receiver)) == {"WATCHDOG": "1"}:
            pass
        assert message == {"STOPPING": "1", "STATUS": "shutting down"}
        broker.stop()


def test_an_abstract_socket(receiver: socket.socket) -> None:
    name = f"millstream-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.settimeout(WAIT_S_MAX)
        abstract.bind(f"\0{name}")
        Systemd({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert received(abstract)["STOPPING"] == "1"


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
    ids=["none", "no number", "of another process"],
)
def test_without_a_watchdog_there_are_no_signs_of_life(
    receiver: socket.socket, watchdog: dict[str, str]
) -> None:
    async def scenario() -> None:
        systemd = Systemd({"NOTIFY_SOCKET": receiver.getsockname(), **watchdog})
        systemd.ready("serves")
        systemd.stopping()
        systemd.close()

    asyncio.run(scenario())
    assert received(receiver) == {"READY": "1", "STATUS": "serves"}
    assert "STOPPING" in received(receiver)


def test_the_watchdog_ends_with_close(receiver: socket.socket) -> None:
    async def scenario() -> None:
        systemd = Systemd({"NOTIFY_SOCKET": receiver.getsockname(), "WATCHDOG_USEC": "2000"})
        systemd.ready("serves")
        systemd.close()
        systemd.close()
        # Timers run in the order of their times: one that is still set would run before this one.
        is_due = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, is_due.set)
        await is_due.wait()
        systemd.stopping()

    asyncio.run(scenario())
    assert [next(iter(received(receiver))) for _ in range(3)] == ["READY", "WATCHDOG", "STOPPING"]


def test_without_systemd_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    Systemd({"WATCHDOG_USEC": "1000"}).ready("serves")
    assert not caplog.records


def test_a_missing_socket_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Systemd({"NOTIFY_SOCKET": str(tmp_path / "missing")}).stopping()
    assert "systemd was not notified (STOPPING=1)" in caplog.text
