"""Limits on the rate of new connections: of the broker, of a listener, and of an address. Pure.

A connection above the rate of the broker or its listener is served later: it waits for its turn. If
it would wait longer than `WAIT_S_MAX`, it is closed. A connection above the rate of its address is
closed after a pause, which slows down clients that reconnect at once. As in Kafka, such a
connection does not count.

As in Kafka, the listener between brokers is not subject to the rate of the broker, if there are
other listeners. Addresses that have not connected for longest are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millstream.model.sentinel import INT32_MAX
from millstream.net.gate import Entry
from millstream.security.quota.quota_table import QuotaTable
from millstream.security.quota.rate import RateWindow, TokenBucket, WindowOptions

WAIT_S_MAX: Final = 30.0
ADDRESSES_MAX: Final = 10_000
BROKER_RATE: Final = "max.connection.creation.rate"
ADDRESS_RATE: Final = "connection_creation_rate"
UNLIMITED: Final = INT32_MAX


@dataclass(frozen=True, slots=True)
class ConnectionRateOptions:
    """Connections per second; `UNLIMITED` is no limit."""

    broker: int = UNLIMITED
    #: By the name of the listener.
    listeners: Mapping[str, int] = field(default_factory=dict)
    #: The listener that the rate of the broker does not apply to.
    protected: str | None = None
    window: WindowOptions = field(default_factory=WindowOptions)

    @property
    def is_limited(self) -> bool:
        return self.broker != UNLIMITED or any(
            rate != UNLIMITED for rate in self.listeners.values()
        )


class ConnectionRates:
    """The rates of new connections. Times are monotonic seconds."""

    __slots__ = ("_addresses", "_broker", "_listeners", "_options", "table")

    def __init__(self, options: ConnectionRateOptions) -> None:
        self._options = options
        self._broker = TokenBucket(options.window)
        self._listeners: dict[str, TokenBucket] = {}
        self._addresses: OrderedDict[str, RateWindow] = OrderedDict()
        #: The quotas of addresses.
        self.table = QuotaTable({})

    def configure(self, options: ConnectionRateOptions) -> None:
        """Apply settings that were changed at run time."""
        self._options = options

    def enter(self, listener: str, address: str, now: float) -> Entry | None:
        """Count a new connection. Return how it is delayed or rejected; None if it is neither."""
        options = self._options
        rejected = self._check_address(address, now)
        if rejected is not None:
            return rejected
        wait_s = 0.0
        if options.broker != UNLIMITED and listener != options.protected:
            wait_s = self._broker.take(1, options.broker, now)
        rate = options.listeners.get(listener, UNLIMITED)
        if rate != UNLIMITED:
            bucket = self._listeners.get(listener)
            if bucket is None:
                bucket = self._listeners[listener] = TokenBucket(options.window)
            wait_s = max(wait_s, bucket.take(1, rate, now))
        if wait_s > WAIT_S_MAX:
            self._take_back(listener, now)
            return Entry(BROKER_RATE, 0.0)
        return Entry(None, wait_s) if wait_s > 0 else None

    def _check_address(self, address: str, now: float) -> Entry | None:
        limit = self.table.connection_rate(address)
        if limit is None:
            return None
        window = self._addresses.get(address)
        if window is None:
            window = self._addresses[address] = RateWindow(self._options.window)
            if len(self._addresses) > ADDRESSES_MAX:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        window.record(1, now)
        excess_s = window.excess_s(limit, now)
        if excess_s <= 0:
            return None
        window.record(-1, now)
        return Entry(ADDRESS_RATE, min(excess_s, self._options.window.window_s))

    def _take_back(self, listener: str, now: float) -> None:
        """Undo the count of a connection that is closed instead of served."""
        options = self._options
        if options.broker != UNLIMITED and listener != options.protected:
            self._broker.take(-1, options.broker, now)
        bucket = self._listeners.get(listener)
        if bucket is not None:
            bucket.take(-1, options.listeners.get(listener, UNLIMITED), now)
