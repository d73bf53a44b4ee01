"""Sending parts of files without copying them.

Owns the way out of one connection from the first file range on: buffers and ranges leave in the
order in which they were given, straight to the socket, buffers by `send` and ranges by `sendfile`,
whose bytes go from the page cache to the socket inside of the kernel. The transport keeps the way
in, and must have nothing left to send when a sender is made for it.

What the socket does not take waits, bounded by the connection, which stops reading requests; the
loop says when there is room again. The sender owns the ranges that it was given: it releases each
of them when it was sent, when sending fails, and when the connection is lost.
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

    Has one owner at a time, who releases it on the event loop: the session, then the connection,
    then its sender."""

    position: int

    def __len__(self) -> int: ...

    def fileno(self) -> int:
        """The descriptor of the file, or -1 where there is none (the simulator)."""
        ...

    def read(self) -> bytes: ...

    def failed(self, error: OSError) -> None:
        """Take note that the disk failed while the range was being sent."""
        ...

    def release(self) -> None:
        """Let the file be closed. Called once."""
        ...


Item: TypeAlias = Buffer | FileRange


def in_memory(items: Iterable[Item]) -> list[Buffer]:
    """The items with every range read: for transports that take nothing but buffers. Raises
    OSError. The ranges are still to be released."""
    return [
        item if isinstance(item, bytes | bytearray | memoryview) else item.read() for item in items
    ]


def release(items: Iterable[Item]) -> None:
    """Release the ranges among items that are not sent."""
    for item in items:
        if not isinstance(item, bytes | bytearray | memoryview):
            item.release()


class FileSender:
    """See the module's text. `close` must be called when the connection is lost."""

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
        # The loop lets nobody else wait on a transport's own descriptor.
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._queue: deque[_Part] = deque()
        self._is_waiting = False
        self.unsent_bytes = 0

    def send(self, items: Iterable[Item]) -> None:
        """Send the items, now as far as the socket takes them; `on_drained` follows the rest."""
        for item in items:
            self._queue.append(_Part(item))
            self.unsent_bytes += len(item)
        if not self._is_waiting:
            self._advance()

    def close(self) -> None:
        """Drop what was not sent and give the descriptor back."""
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
    """One item, and how much of it is left."""

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
        """Send what the socket takes and return how much that was. Raises OSError."""
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
                raise OSError(f"the file ends {self.left} bytes before what is to be sent")
        self.left -= sent
        return sent
