from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.process.port import HOST, free_port
from millstream.process.readiness import listens, wait_until
from millstream.process.server_process import ServerFailed, ServerProcess, start_all, stop_all

_LISTEN = "import socket, signal; s = socket.create_server(('{host}', {port})); signal.pause()"
_IGNORE_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


class _Listener(ServerProcess):
    """A Python program; by default one that listens on its port."""

    def __init__(self, folder: Path, name: str = "listener", program: str = _LISTEN) -> None:
        super().__init__(name, folder / f"{name}.log")
        self.port = free_port()
        self._program = program.format(host=HOST, port=self.port)

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", self._program]

    def is_ready(self) -> bool:
        return listens(HOST, self.port)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[_Listener]:
    with _Listener(tmp_path) as server:
        yield server


def test_a_started_server_is_ready_and_can_be_restarted(listener: _Listener) -> None:
    first = listener.pid
    assert listener.is_alive()
    assert listener.stop() == -signal.SIGTERM
    assert not listener.is_alive()
    assert not listens(HOST, listener.port)
    listener.start()
    assert listener.pid != first
    assert listener.is_ready()


def test_a_killed_server_has_not_exited_by_itself(listener: _Listener) -> None:
    listener.kill()
    assert not listener.is_alive()
    assert not listener.has_exited()
    assert listener.stop() is None
    listener.kill()


def test_an_exit_of_the_server_is_noticed(tmp_path: Path) -> None:
    server = _Listener(tmp_path, program="raise SystemExit(7)")
    server.start(wait=False)
    wait_until(server.has_exited, "the exit")
    assert server.returncode == 7
    server.kill()


def test_a_server_that_exits_while_starting_shows_its_log(tmp_path: Path) -> None:
    server = _Listener(tmp_path, program="import sys; sys.exit('no such disk')")
    with pytest.raises(ServerFailed, match=r"listener ended while starting; .*\n.*no such disk"):
        server.start()
    assert server.exit_code == 1
    assert not server.is_alive()


def test_a_late_server_is_killed(tmp_path: Path) -> None:
    server = _Listener(tmp_path, program="import signal; signal.pause()")
    server.start(wait=False)
    with pytest.raises(ServerFailed, match=r"is not ready after 0\.1 s"):
        server.wait_until_ready(0.1)
    assert not server.is_alive()


def test_waiting_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    server = _Listener(tmp_path, program="import signal; signal.pause()")
    server.start(wait=False)
    server.wait_until_ready(60.0, lambda: True)
    assert server.is_alive()
    server.kill()


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with _Listener(tmp_path, program=_IGNORE_SIGTERM + _LISTEN) as server:
        assert server.stop(0.1) == -signal.SIGKILL


def test_a_paused_server_stays_alive(listener: _Listener) -> None:
    listener.pause()
    assert listener.is_alive()
    listener.resume()
    assert listener.stop() == -signal.SIGTERM


def test_several_servers_start_and_stop_together(tmp_path: Path) -> None:
    servers = [_Listener(tmp_path, f"listener-{number}") for number in range(3)]
    start_all(servers)
    assert all(server.is_ready() for server in servers)
    stop_all(servers)
    assert not any(server.is_alive() for server in servers)


def test_a_failure_inside_the_block_shows_the_log(tmp_path: Path) -> None:
    program = "print('hello', flush=True); " + _LISTEN
    with pytest.raises(RuntimeError) as caught, _Listener(tmp_path, program=program):
        raise RuntimeError
    assert any("hello" in note for note in caught.value.__notes__)


def test_waiting_for_a_condition_that_never_holds() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0\.05 s for the impossible"):
        wait_until(lambda: False, "the impossible", 0.05)
