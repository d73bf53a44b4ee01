"""Sends ranges of files through TLS, a chunk at a time.

TLS needs the bytes in memory to encrypt them. A response can have many megabytes, so a sender reads
and encrypts one chunk after the other, and only while the transport's buffer has room. From the
first file range on it owns the output of one connection, as a `FileSender` does for a connection
without TLS: the connection stops reading requests while too much is queued, and the sender releases
each range when it was sent, when sending fails, and when the connection is lost.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from millstream.env.disk import Buffer
from millstream.net.file_sender import FileRange, Item

if TYPE_CHECKING:
    from millstream.net.tls_transport import TlsTransport

#: Bytes that are read and encrypted in one step.
CHUNK_BYTES: Final = 64 * 1024
#: While the transport has more encrypted bytes than this, no further chunk is read.
PENDING_BYTES_MAX: Final = 256 * 1024


class TlsSender:
    """Sends the responses of one connection. The connection calls `close` when it is lost."""

    __slots__ = (
        "_is_waiting",
        "_on_drained",
        "_on_failed",
        "_position",
        "_queue",
        "_transport",
        "unsent_bytes",
    )

    def __init__(
        self,
        transport: TlsTransport,
        on_drained: Callable[[], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._transport = transport
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._queue: deque[Item] = deque()
        #: How many bytes of the first item were sent.
        self._position = 0
        #: Whether the transport has no room.
        self._is_waiting = False
        #: Bytes that were not encrypted yet.
        self.unsent_bytes = 0
        transport.set_sender(self._advance, PENDING_BYTES_MAX)

    def send(self, items: Iterable[Item]) -> None:
        """Send the items as far as the transport has room. The rest follows when there is room
        again; then `on_drained` is called."""
        for item in items:
            self._queue.append(item)
            self.unsent_bytes += len(item)
        if not self._is_waiting:
            self._send_chunks()

    def close(self) -> None:
        """Drop the items that were not sent."""
        queue, self._queue = self._queue, deque()
        self.unsent_bytes = 0
        for item in queue:
            _release(item)

    def _advance(self) -> None:
        """Continue: the transport has room again."""
        self._send_chunks()
        if not self._queue and not self._is_waiting:
            self._on_drained()

    def _send_chunks(self) -> None:
        self._is_waiting = False
        try:
            while self._queue and not self._transport.is_closing():
                if not self._transport.has_room:
                    self._is_waiting = True
                    return
                self._transport.writelines(self._take())
        except OSError as error:
            self.close()
            self._on_failed(error)

    def _take(self) -> list[Buffer]:
        """Remove about a chunk from the queue, and return it as buffers. Raises OSError."""
        found: list[Buffer] = []
        room = CHUNK_BYTES
        while self._queue and room > 0:
            item = self._queue[0]
            count = min(len(item) - self._position, room)
            found.append(_part(item, self._position, count))
            self._position += count
            room -= count
            self.unsent_bytes -= count
            if self._position == len(item):
                _release(self._queue.popleft())
                self._position = 0
        return found


def _part(item: Item, position: int, count: int) -> Buffer:
    if isinstance(item, bytes | bytearray | memoryview):
        return memoryview(item)[position : position + count]
    return _read(item, position, count)


def _read(part: FileRange, position: int, count: int) -> Buffer:
    if part.fileno() < 0:
        return memoryview(part.read())[position : position + count]
    try:
        data = os.pread(part.fileno(), count, part.position + position)
    except OSError as error:
        if error.errno == errno.EIO:
            part.failed(error)
        raise
    if len(data) != count:
        raise OSError(f"the file ends {count - len(data)} bytes before the end of the range")
    return data


def _release(item: Item) -> None:
    if not isinstance(item, bytes | bytearray | memoryview):
        item.release()
