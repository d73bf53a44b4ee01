"""An answer of etcd that does not end by itself, line by line.

Owns the bytes of a line that has not arrived in full. What lines mean is `etcd_watch`'s business.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

from millstream.metadata.store.port import StoreError, UnavailableError

#: A line of a stream holds whole transactions, of which a watcher that is behind gets many.
LINE_BYTES_MAX: Final = 256 * 1024 * 1024


class EtcdStream:
    """The lines of one answer that does not end by itself."""

    __slots__ = ("_buffer", "_response", "_searched")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._buffer = bytearray()
        #: Bytes at the buffer's start that hold no end of a line.
        self._searched = 0

    async def line(self, seconds_max: float) -> bytes | None:
        """The next line; None if there was none in this time. Nothing is lost by waiting less.

        UnavailableError when the stream has ended."""
        try:
            async with asyncio.timeout(seconds_max):
                while (end := self._buffer.find(b"\n", self._searched)) < 0:
                    self._searched = len(self._buffer)
                    await self._read()
        except TimeoutError:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def end(self) -> None:
        """Wake whoever waits for a line; closing the session alone would not."""
        self._response.content.set_exception(aiohttp.ClientConnectionError("closed"))

    async def _read(self) -> None:
        try:
            chunk = await self._response.content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # The last is what aiohttp raises where the connection was lost before the read.
            raise UnavailableError("the watch was cut off") from error
        if not chunk:
            raise UnavailableError("etcd has ended the watch")
        self._buffer += chunk
        if len(self._buffer) > LINE_BYTES_MAX:
            raise StoreError(f"a line of etcd's answer has over {LINE_BYTES_MAX} bytes")
