"""Sends one ApiVersions request of version 0 to a broker."""

from __future__ import annotations

import socket
import struct

from millstream.process.port import HOST

API_VERSIONS = 18


def ask(port: int) -> set[int]:
    """Return the API keys that the broker on this port supports."""
    header = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
    with socket.create_connection((HOST, port), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(header)) + header)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            response = stream.read(size)
    error, count = struct.unpack_from(">hi", response, 4)
    if error:
        raise RuntimeError(f"ApiVersions failed with error code {error}")
    return {struct.unpack_from(">h", response, 10 + 6 * i)[0] for i in range(count)}
