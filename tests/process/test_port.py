"""Ports for server processes."""

from __future__ import annotations

import socket

import pytest

from millstream.process import port


def test_no_port_is_chosen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "available", range(port.PORTS.start, port.PORTS.start + 40))
    monkeypatch.setattr(port, "_chosen", set())
    chosen = [port.free_port() for _ in range(10)]
    assert len(set(chosen)) == 10
    assert set(chosen) <= set(port.available)


def test_ports_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "available", range(port.PORTS.start, port.PORTS.start + 40))
    monkeypatch.setattr(port, "_chosen", set())
    firsts = [port.free_port(3) for _ in range(4)]
    ports = {number for first in firsts for number in range(first, first + 3)}
    assert len(ports) == 12
    assert ports <= set(port.available)


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind((port.HOST, port.free_port()))
        taken = server.getsockname()[1]
        monkeypatch.setattr(port, "_chosen", set())
        monkeypatch.setattr(port, "available", range(taken, taken + 1))
        with pytest.raises(OSError, match="are free: stop some servers"):
            port.free_port()
