"""Measures clients against their quotas, and returns for how long to throttle them.

Each (user, client id) has a `ClientQuotas` with the limits that apply to it. Clients that share a
quota share its `Meter`. At most `clients_max` clients are tracked; the one that was used least
recently is forgotten first, and its meters with the last client that refers to them.

Throttle times are Kafka's: the time without requests after which the rate is back at the quota. For
request time it is at most one sample of the window.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final
from weakref import WeakValueDictionary

from millstream.metadata.security_record import QuotaEntity, Quotas
from millstream.security.quota.quota_table import QuotaTable, Scope
from millstream.security.quota.quota_type import QuotaName
from millstream.security.quota.rate import RateWindow, TokenBucket, WindowOptions

CLIENTS_MAX: Final = 10_000
#: Units of `request_percentage` in a second of the event loop.
PERCENT: Final = 100.0


class Meter:
    """The use of one quota by the clients that share it."""

    __slots__ = ("__weakref__", "bucket", "quota", "rate", "scope", "throttle_s", "used")

    def __init__(
        self,
        quota: QuotaName,
        scope: Scope,
        rate: RateWindow | None,
        bucket: TokenBucket | None,
    ) -> None:
        self.quota = quota
        self.scope = scope
        #: One of the two is set.
        self.rate = rate
        self.bucket = bucket
        #: Totals since the meter was made, for the metrics.
        self.used = 0.0
        self.throttle_s = 0.0


class LimitedMeter:
    """A meter with the limit that applies to it. Methods that return a number return the seconds to
    throttle."""

    __slots__ = ("_throttle_s_max", "limit", "meter")

    def __init__(self, meter: Meter, limit: float, throttle_s_max: float | None = None) -> None:
        self.meter = meter
        self.limit = limit
        self._throttle_s_max = throttle_s_max

    def charge(self, value: float, now: float) -> float:
        """Record a use of a rate."""
        meter = self.meter
        assert meter.rate is not None
        self.record(value, now)
        return self._noted(meter.rate.excess_s(self.limit, now))

    def record(self, value: float, now: float) -> None:
        """Record a use of a rate that throttles the next request."""
        meter = self.meter
        assert meter.rate is not None
        meter.rate.record(value, now)
        meter.used += value

    def check(self, now: float) -> float:
        """Return for how long a rate is above its limit, without recording anything."""
        assert self.meter.rate is not None
        return self._bounded(self.meter.rate.excess_s(self.limit, now))

    def take_back(self, value: float, now: float) -> None:
        """Undo a `charge`: the client did not get what was charged."""
        self.record(-value, now)

    def take(self, tokens: float, now: float, *, is_strict: bool) -> float:
        """Take tokens of a bucket. A strict client gets none while the bucket is below zero."""
        bucket = self.meter.bucket
        assert bucket is not None
        if is_strict:
            wait_s = bucket.exhausted_s(self.limit, now)
            if wait_s > 0:
                return self._noted(wait_s)
        self.meter.used += tokens
        wait_s = bucket.take(tokens, self.limit, now)
        return 0.0 if is_strict else self._noted(wait_s)

    def _bounded(self, throttle_s: float) -> float:
        if self._throttle_s_max is not None and throttle_s > self._throttle_s_max:
            return self._throttle_s_max
        return throttle_s

    def _noted(self, throttle_s: float) -> float:
        throttle_s = self._bounded(throttle_s)
        self.meter.throttle_s += throttle_s
        return throttle_s


class ClientQuotas:
    """The quotas of one client; None where the client has none."""

    __slots__ = ("fetch", "generation", "mutation", "produce", "request")

    def __init__(
        self,
        generation: int,
        produce: LimitedMeter | None,
        fetch: LimitedMeter | None,
        request: LimitedMeter | None,
        mutation: LimitedMeter | None,
    ) -> None:
        #: The quotas that this was resolved with; see `Limiter`.
        self.generation = generation
        self.produce = produce
        self.fetch = fetch
        #: In percent of the event loop.
        self.request = request
        #: The only one with a token bucket.
        self.mutation = mutation

    def charge_request(self, handled_s: float, now: float) -> float:
        """Record the time of a handler; return the seconds to throttle."""
        return 0.0 if self.request is None else self.request.charge(handled_s * PERCENT, now)


class Limiter:
    """The quotas in force, and the clients that use them."""

    __slots__ = (
        "_clients",
        "_clients_max",
        "_generation",
        "_meters",
        "_mutation_window",
        "_window",
        "table",
    )

    def __init__(
        self,
        window: WindowOptions,
        mutation_window: WindowOptions,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        self._window = window
        self._mutation_window = mutation_window
        self._clients_max = clients_max
        self._clients: OrderedDict[tuple[str, str], ClientQuotas] = OrderedDict()
        self._meters: WeakValueDictionary[tuple[QuotaName, Scope], Meter] = WeakValueDictionary()
        #: Raised with each change of the quotas: clients are then resolved again when next used.
        self._generation = 0
        self.table = QuotaTable({})

    def set_quotas(self, quotas: Mapping[QuotaEntity, Quotas]) -> None:
        """Replace all quotas. What clients have used so far still counts."""
        self.table = QuotaTable(quotas)
        self._generation += 1

    def client(self, user: str, client_id: str) -> ClientQuotas:
        """Return the quotas of a client."""
        key = (user, client_id)
        found = self._clients.get(key)
        if found is not None and found.generation == self._generation:
            self._clients.move_to_end(key)
            return found
        made = self._resolve(user, client_id)
        self._clients[key] = made
        self._clients.move_to_end(key)
        if len(self._clients) > self._clients_max:
            self._clients.popitem(last=False)
        return made

    def fetch_bytes_max(self, quotas: ClientQuotas) -> float | None:
        """Return the bytes that a client may fetch within its window; None is no limit."""
        if quotas.fetch is None:
            return None
        return quotas.fetch.limit * self._window.whole_s

    def meters(self) -> Iterator[Meter]:
        """Yield all meters, oldest first."""
        yield from list(self._meters.values())

    def __len__(self) -> int:
        return len(self._clients)

    def _resolve(self, user: str, client_id: str) -> ClientQuotas:
        def find(quota: QuotaName, throttle_s_max: float | None = None) -> LimitedMeter | None:
            limit = self.table.find(quota, user, client_id)
            if limit is None:
                return None
            return LimitedMeter(self._meter(quota, limit.scope), limit.value, throttle_s_max)

        return ClientQuotas(
            self._generation,
            find(QuotaName.PRODUCER_BYTE_RATE),
            find(QuotaName.CONSUMER_BYTE_RATE),
            find(QuotaName.REQUEST_PERCENTAGE, self._window.window_s),
            find(QuotaName.CONTROLLER_MUTATION_RATE),
        )

    def _meter(self, quota: QuotaName, scope: Scope) -> Meter:
        found = self._meters.get((quota, scope))
        if found is None:
            if quota is QuotaName.CONTROLLER_MUTATION_RATE:
                found = Meter(quota, scope, None, TokenBucket(self._mutation_window))
            else:
                found = Meter(quota, scope, RateWindow(self._window), None)
            self._meters[quota, scope] = found
        return found
