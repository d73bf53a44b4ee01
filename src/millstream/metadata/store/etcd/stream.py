"""A streaming response of etcd, read line by line.

Owns the bytes of an incomplete line. `watch` parses the lines.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

from millstream.metadata.store.port import MetadataStoreError, UnavailableError

#: A line has whole transactions, and many of them for a watch that is behind.
LINE_BYTES_MAX: Final = 256 * 1024 * 1024


class EtcdStream:
    """The lines of one streaming response."""

    __slots__ = ("_buffer", "_response", "_searched")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._buffer = bytearray()
        #: Number of bytes at the buffer's start that contain no line end.
        self._searched = 0

    async def line(self, seconds_max: float) -> bytes | None:
        """Return the next line; None if it is not complete within this time.

        A timeout loses no bytes. Raises UnavailableError once the stream has ended."""
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
        """Wake the caller that waits for a line; closing the session alone does not wake it."""
        self._response.content.set_exception(aiohttp.ClientConnectionError("closed"))

    async def _read(self) -> None:
        try:
            chunk = await self._response.content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # aiohttp raises RuntimeError if the connection was lost before the read.
            raise UnavailableError("the connection of the watch was lost") from error
        if not chunk:
            raise UnavailableError("etcd has ended the watch")
        self._buffer += chunk
        if len(self._buffer) > LINE_BYTES_MAX:
            raise MetadataStoreError(
                f"a line of etcd's response is longer than {LINE_BYTES_MAX} bytes"
            )
