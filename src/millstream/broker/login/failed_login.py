"""Failed logins by client address: an address with many of them is slowed down. No I/O.

An address whose logins have failed more than `failures_max` times in a minute must wait
`SLOW_S` before each further login, and at most `WAITING_MAX` of its logins wait at a time; the
connections of others are closed. So its clients can still log in, but guess few passwords. The
table is bounded; the address that failed least recently is dropped first.

A host usually has a whole IPv6 network of 64 bits, so its addresses count as one.
"""

from __future__ import annotations

import ipaddress
from typing import Final

PERIOD_S: Final = 60.0
SLOW_S: Final = 1.0
WAITING_MAX: Final = 5
ADDRESSES_MAX: Final = 10_000


class FailedLogins:
    """The failures of the last minute. Event loop only; `now` is monotonic time."""

    __slots__ = ("_failures", "_failures_max", "_waiting")

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        #: Start of the period and failures in it, by address, oldest failure first.
        self._failures: dict[str, tuple[float, int]] = {}
        #: Logins that wait, by address.
        self._waiting: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def note(self, address: str, now: float) -> None:
        """Count a failed login."""
        address = _origin(address)
        began_at, count = self._failures.pop(address, (now, 0))
        if now - began_at >= PERIOD_S:
            began_at, count = now, 0
        self._failures[address] = (began_at, count + 1)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]

    def is_slow(self, address: str, now: float) -> bool:
        """Return whether logins from an address must wait."""
        began_at, count = self._failures.get(_origin(address), (now, 0))
        return count >= self._failures_max and now - began_at < PERIOD_S

    def begin_wait(self, address: str) -> bool:
        """Count a login that waits. Return False if too many of this address do."""
        address = _origin(address)
        count = self._waiting.get(address, 0)
        if count >= WAITING_MAX:
            return False
        self._waiting[address] = count + 1
        return True

    def end_wait(self, address: str) -> None:
        """Stop counting a login that has waited."""
        address = _origin(address)
        count = self._waiting.pop(address) - 1
        if count:
            self._waiting[address] = count


def _origin(address: str) -> str:
    """Return what an address counts as: its network for IPv6, else the IPv4 address."""
    if ":" not in address:
        return address
    whole = ipaddress.IPv6Address(address)
    if whole.ipv4_mapped is not None:
        return str(whole.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(whole) >> 64 << 64))
