"""The memory for incomplete requests of clients that are not authenticated.

It is separate from the memory for other requests, so that clients which are logged in never wait
for clients which are not. When it is used up, one connection is closed: of those with the largest
incomplete requests the oldest, or the new one if its request is larger than all others. The
messages of a login are small, so real logins are closed last.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol


class Owner(Protocol):
    """A connection with an incomplete request."""

    def evict(self) -> None:
        """Close the connection. Its memory is released already."""


class LoginMemory:
    """The incomplete requests of all connections without a login. Event loop only."""

    __slots__ = ("_by_size", "_sizes", "reserved_bytes")

    def __init__(self) -> None:
        self._sizes: dict[Owner, int] = {}
        #: Owners by the number of bits of their sizes, oldest first. No class is empty.
        self._by_size: defaultdict[int, dict[Owner, None]] = defaultdict(dict)
        #: The sum of all sizes.
        self.reserved_bytes = 0

    def reserve(self, owner: Owner, size: int, bytes_max: int) -> bytearray | None:
        """Return a buffer for the owner's request; None if there is no room. A request larger than
        `bytes_max` has room while there is no other one."""
        size_class = size.bit_length()
        while self._sizes and self.reserved_bytes + size > bytes_max:
            largest = max(self._by_size)
            if size_class > largest:
                return None
            evicted = next(iter(self._by_size[largest]))
            self.release(evicted)
            evicted.evict()
        self._sizes[owner] = size
        self._by_size[size_class][owner] = None
        self.reserved_bytes += size
        return bytearray(size)

    def release(self, owner: Owner) -> None:
        """Stop counting the request of an owner."""
        size = self._sizes.pop(owner)
        owners = self._by_size[size.bit_length()]
        del owners[owner]
        if not owners:
            del self._by_size[size.bit_length()]
        self.reserved_bytes -= size
