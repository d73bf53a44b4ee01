"""Sends frames over many short-lived connections at once, without waiting for responses.

Each connection sends a pipeline of frames. It ends with the first frame after which the broker must
close the connection, or with the client's half-close. Either way the broker has to close it within
`CLOSE_SECONDS_MAX`; a connection that stays open is a failure. The client resets some connections.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fuzz.frames import FrameSource, is_fatal

CLOSE_SECONDS_MAX = 30.0
_WINDOW = 48
_FRAMES_MAX = 40
_NO_LINGER = struct.pack("ii", 1, 0)


class _Pipe:
    """One connection and the bytes that remain to be sent."""

    __slots__ = ("is_dropped", "opened_at", "rest", "sent_all", "socket")

    def __init__(self, address: tuple[str, int], data: bytes, is_dropped: bool) -> None:
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setblocking(False)
        self.rest = memoryview(data)
        self.is_dropped = is_dropped
        self.sent_all = False
        self.opened_at = time.monotonic()

    def advance(self, events: int) -> bool:
        """Send and receive what is possible; return False when the connection is closed."""
        try:
            if events & selectors.EVENT_WRITE and not self.sent_all:
                self.rest = self.rest[self.socket.send(self.rest) :]
                if not self.rest:
                    self.sent_all = True
                    if self.is_dropped:
                        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                        return False
                    self.socket.shutdown(socket.SHUT_WR)
            if events & selectors.EVENT_READ and not self.socket.recv(1 << 18):
                return False
        except BlockingIOError:
            return True
        except (ConnectionResetError, BrokenPipeError, OSError):
            return False
        return True


def _pipeline(source: FrameSource, chance: random.Random, frames_max: int) -> tuple[bytes, int]:
    frames = []
    for _ in range(chance.randint(1, min(_FRAMES_MAX, frames_max))):
        frame = source.next()
        frames.append(frame)
        if is_fatal(frame):
            break
    return b"".join(frames), len(frames)


def flood(
    address: tuple[str, int],
    source: FrameSource,
    frames: int,
    chance: random.Random,
    on_turn: Callable[[], None],
) -> None:
    """Send `frames` frames. Call `on_turn` every few connections; it may fail the run."""
    sent = opened = 0
    with _all_closed(selectors.DefaultSelector()) as selector:
        while sent < frames or selector.get_map():
            while sent < frames and len(selector.get_map()) < _WINDOW:
                data, count = _pipeline(source, chance, frames - sent)
                pipe = _Pipe(address, data, chance.random() < 0.1)
                selector.register(pipe.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, pipe)
                sent += count
                opened += 1
                if opened % 64 == 0:
                    on_turn()
            for key, events in selector.select(timeout=0.2):
                pipe = key.data
                if not pipe.advance(events):
                    selector.unregister(pipe.socket)
                    pipe.socket.close()
                elif pipe.sent_all and key.events & selectors.EVENT_WRITE:
                    selector.modify(pipe.socket, selectors.EVENT_READ, pipe)
            _check_overdue(selector)
    on_turn()


@contextmanager
def _all_closed(selector: selectors.BaseSelector) -> Iterator[selectors.BaseSelector]:
    try:
        yield selector
    finally:
        for key in list(selector.get_map().values()):
            key.data.socket.close()
        selector.close()


def _check_overdue(selector: selectors.BaseSelector) -> None:
    now = time.monotonic()
    for key in list(selector.get_map().values()):
        age = now - key.data.opened_at
        assert age < CLOSE_SECONDS_MAX, f"the broker keeps a connection open after {age:.0f} s"
