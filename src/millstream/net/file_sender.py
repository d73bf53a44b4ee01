"""Sends parts of files without copying them.

From the first file range on, a sender owns the output of one connection. Buffers and ranges leave
in order, straight to the socket: buffers by `send`, ranges by `sendfile`, which moves bytes from
the page cache to the socket inside the kernel. The transport keeps the input, and must have nothing
left to send when its sender is made.

Items that the socket does not accept yet are queued; the loop reports when there is room. The
connection bounds the queue: it stops reading requests. The sender owns the ranges in its queue. It
releases each range when it was sent, when sending fails, and when the connection is lost.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from millstream.env.disk import Buffer


class FileRange(Protocol):
    """A part of a file that does not change, readable until it is released.

    Has one owner at a time, which releases it on the event loop: the session, then the connection,
    then the connection's sender."""

    position: int

    def __len__(self) -> int: ...

    def fileno(self) -> int:
        """Return the descriptor of the file; -1 in the simulator, which has none."""
        ...

    def read(self) -> bytes: ...

    def failed(self, error: OSError) -> None:
        """Report that the disk failed while the range was being sent."""
        ...

    def release(self) -> None:
        """Allow the file to be closed. Called once."""
        ...


Item: TypeAlias = Buffer | FileRange


def in_memory(items: Iterable[Item]) -> list[Buffer]:
    """Return the items with every range read into memory, for a transport that sends only buffers.

    Raises OSError. The caller still has to release the ranges."""
    return [
        item if isinstance(item, bytes | bytearray | memoryview) else item.read() for item in items
    ]


def release(items: Iterable[Item]) -> None:
    """Release the ranges among items that will not be sent."""
    for item in items:
        if not isinstance(item, bytes | bytearray | memoryview):
            item.release()


class FileSender:
    """Sends the responses of one connection. The connection calls `close` when it is lost."""

    __slots__ = (
        "_is_waiting",
        "_loop",
        "_on_drained",
        "_on_failed",
        "_queue",
        "_socket",
        "unsent_bytes",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        on_drained: Callable[[], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        # A loop rejects `add_writer` on the descriptor of a transport, so the sender has its own.
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._queue: deque[_Part] = deque()
        self._is_waiting = False
        self.unsent_bytes = 0

    def send(self, items: Iterable[Item]) -> None:
        """Send the items, now as far as the socket accepts them; `on_drained` follows the rest."""
        for item in items:
            self._queue.append(_Part(item))
            self.unsent_bytes += len(item)
        if not self._is_waiting:
            self._advance()

    def close(self) -> None:
        """Drop the items that were not sent, and close the descriptor."""
        self._stop_waiting()
        self._drop()
        self._socket.close()

    def _drop(self) -> None:
        while self._queue:
            self._queue.popleft().release()
        self.unsent_bytes = 0

    def _advance(self) -> None:
        queue = self._queue
        try:
            while queue:
                part = queue[0]
                sent = part.send(self._socket, has_more=len(queue) > 1)
                self.unsent_bytes -= sent
                if part.left == 0:
                    queue.popleft().release()
        except (BlockingIOError, InterruptedError):
            if not self._is_waiting:
                self._is_waiting = True
                self._loop.add_writer(self._socket.fileno(), self._advance)
            return
        except OSError as error:
            self._stop_waiting()
            self._drop()
            self._on_failed(error)
            return
        if self._is_waiting:
            self._stop_waiting()
            self._on_drained()

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._socket.fileno())


class _Part:
    """One item, and how many of its bytes are left to send."""

    __slots__ = ("_buffer", "_range", "left")

    def __init__(self, item: Item) -> None:
        self._buffer: memoryview | None = None
        self._range: FileRange | None = None
        if isinstance(item, bytes | bytearray | memoryview):
            self._buffer = memoryview(item)
        else:
            self._range = item
        self.left = len(item)

    def release(self) -> None:
        part, self._range = self._range, None
        if part is not None:
            part.release()

    def send(self, target: socket.socket, *, has_more: bool) -> int:
        """Send as much as the socket accepts, and return the number of bytes. Raises OSError."""
        if self.left == 0:
            return 0
        if self._buffer is not None:
            flags = socket.MSG_DONTWAIT | (socket.MSG_MORE if has_more else 0)
            sent = target.send(self._buffer[len(self._buffer) - self.left :], flags)
        else:
            assert self._range is not None
            part = self._range
            start = part.position + len(part) - self.left
            try:
                sent = os.sendfile(target.fileno(), part.fileno(), start, self.left)
            except OSError as error:
                if error.errno == errno.EIO:
                    part.failed(error)
                raise
            if sent == 0:
                raise OSError(f"the file ends {self.left} bytes before the end of the range")
        self.left -= sent
        return sent
