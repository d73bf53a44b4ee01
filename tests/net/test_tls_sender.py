"""The sender of a connection with TLS, over a transport of the test."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from millstream.net import tls_sender
from millstream.net.tls_sender import CHUNK_BYTES, TlsSender


class FakeTransport:
    """Has room for a number of chunks."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.written = bytearray()
        self.largest = 0
        self.on_writable: Callable[[], None] = lambda: None
        self.closing = False

    def set_sender(self, on_writable: Callable[[], None], high: int) -> None:
        self.on_writable = on_writable

    @property
    def has_room(self) -> bool:
        return self.room > 0

    def is_closing(self) -> bool:
        return self.closing

    def writelines(self, buffers: Iterable[Any]) -> None:
        data = b"".join(buffers)
        self.largest = max(self.largest, len(data))
        self.written += data
        self.room -= 1


class Range:
    """A range without a descriptor, as in the simulator."""

    position = 0

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.releases = 0
        self.failures: list[OSError] = []

    def __len__(self) -> int:
        return len(self.data)

    def fileno(self) -> int:
        return -1

    def read(self) -> bytes:
        return self.data

    def failed(self, error: OSError) -> None:
        self.failures.append(error)

    def release(self) -> None:
        self.releases += 1


def made(room: int) -> tuple[TlsSender, FakeTransport, list[object]]:
    transport, events = FakeTransport(room), []
    sender = TlsSender(transport, lambda: events.append("drained"), events.append)  # type: ignore[arg-type]
    return sender, transport, events


def test_chunks_leave_while_there_is_room() -> None:
    sender, transport, events = made(2)
    found = Range(bytes(range(256)) * 1000)
    sender.send([b"head", found, b"tail"])
    whole = b"head" + found.data + b"tail"
    assert transport.written == whole[: 2 * CHUNK_BYTES]
    assert sender.unsent_bytes == len(whole) - 2 * CHUNK_BYTES
    assert (found.releases, events) == (0, [])
    transport.room = 100
    transport.on_writable()
    assert transport.written == whole
    assert transport.largest <= CHUNK_BYTES
    assert (sender.unsent_bytes, found.releases, events) == (0, 1, ["drained"])


def test_a_response_behind_others_waits_for_them() -> None:
    sender, transport, _ = made(0)
    sender.send([b"first"])
    sender.send([b"second"])
    assert not transport.written
    transport.room = 5
    transport.on_writable()
    assert transport.written == b"firstsecond"


def test_a_lost_connection_releases_ranges() -> None:
    sender, transport, _ = made(1)
    ranges = [Range(bytes(CHUNK_BYTES)), Range(b"x" * 10)]
    sender.send(ranges)
    transport.closing = True
    sender.close()
    assert [each.releases for each in ranges] == [1, 1]
    assert sender.unsent_bytes == 0


def test_a_disk_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EIO, "broken")

    def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(tls_sender.os, "pread", fail)
    sender, _, events = made(9)
    found = Range(b"data")
    found.fileno = lambda: 7  # type: ignore[method-assign]
    sender.send([found])
    assert events == [error]
    assert found.failures == [error]
    assert (found.releases, sender.unsent_bytes) == (1, 0)


def test_a_file_that_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_sender.os, "pread", lambda *_: b"d")
    sender, _, events = made(9)
    found = Range(b"data")
    found.fileno = lambda: 7  # type: ignore[method-assign]
    sender.send([found])
    (error,) = events
    assert "ends 3 bytes before" in str(error)
