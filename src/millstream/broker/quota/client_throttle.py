"""Enforces the quotas of clients, as Kafka does since KIP-219.

The response to a request above a quota is sent at once, with the time to wait in
`throttle_time_ms`. The session then reads nothing from the connection for that time. A Fetch
response of a throttled client is empty: the client fetches the same records later.

The time of a request is the time of its handler. A handler that runs as a task (the requests of
admin clients) counts only until it returns its coroutine. Callbacks that end a reply do not count.

`Services.quotas` is None while no user and no client id has a quota, so that requests cost one
check then. Requests between brokers are exempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.env.clock import Clock
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.principal import ANONYMOUS
from millstream.model.sentinel import INT32_MAX
from millstream.security.quota.limiter import ClientQuotas, LimitedMeter, Limiter
from millstream.wire.api import PRIVATE_FROM, ApiKey
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.schema import Message

if TYPE_CHECKING:
    from millstream.broker.context import Context

#: From this version on only brokers send the request.
_BROKERS_ADD_PARTITIONS_SINCE: Final = 4


class ClientThrottle:
    """Measures the requests of clients against their quotas. Event loop only."""

    __slots__ = ("_clock", "limiter")

    def __init__(self, limiter: Limiter, clock: Clock) -> None:
        self.limiter = limiter
        self._clock = clock

    def charge(self, request: Message | None, context: Context, size: int, handled_s: float) -> int:
        """Charge a request that was handled: its bytes if it is a Produce request, and the time of
        its handler. Return the milliseconds for which to throttle the client."""
        if request is None or _is_exempt(request, context.version):
            return 0
        client = context.client
        if client.login is not None and client.principal is ANONYMOUS:
            # The client logs in. All such clients have one name: a flood of logins by one of them
            # would throttle the logins of all others. Other limits apply to logins.
            return 0
        quotas = self._quotas(context)
        now = self._clock.monotonic()
        throttle_s = quotas.charge_request(handled_s, now)
        if quotas.produce is not None and request.api_key == ApiKey.PRODUCE:
            throttle_s = max(throttle_s, quotas.produce.charge(size, now))
        return _milliseconds(throttle_s)

    def charge_fetch(self, context: Context, size: int) -> int:
        """Charge the records of a Fetch response. Return the milliseconds for which to throttle the
        client, which then gets none of the records and is not charged."""
        if not size:
            return 0
        quotas = self._quotas(context)
        now = self._clock.monotonic()
        throttle_s = 0.0 if quotas.request is None else quotas.request.check(now)
        fetch = quotas.fetch
        if fetch is None:
            return _milliseconds(throttle_s)
        # One batch may be larger than all that the quota allows in its window. If it were charged
        # in full, the client would never get it.
        charged = min(size, self.limiter.fetch_bytes_max(quotas) or size)
        throttle_ms = _milliseconds(max(throttle_s, fetch.charge(charged, now)))
        if throttle_ms:
            fetch.take_back(charged, now)
        return throttle_ms

    def fetch_bytes_max(self, context: Context) -> int | None:
        """Return the most bytes that one Fetch response may have; None is no limit."""
        bytes_max = self.limiter.fetch_bytes_max(self._quotas(context))
        return None if bytes_max is None else max(int(bytes_max), 1)

    def mutation(self, context: Context) -> LimitedMeter | None:
        """Return the quota on partitions that the client creates and deletes."""
        return self._quotas(context).mutation

    def _quotas(self, context: Context) -> ClientQuotas:
        return self.limiter.client(context.client.principal.name, context.client_id or "")


class MutationQuota:
    """The quota of one request that creates or deletes partitions (KIP-599).

    Clients that know THROTTLING_QUOTA_EXCEEDED get it while the quota is exhausted. For others the
    change is made, and the client is throttled afterwards."""

    __slots__ = ("_clock", "_is_strict", "_meter", "throttle_ms")

    def __init__(self, context: Context, *, strict_since: int) -> None:
        quotas = context.services.quotas
        self._meter = None if quotas is None else quotas.mutation(context)
        self._clock = context.services.clock
        self._is_strict = context.version >= strict_since
        #: The time for which the client is throttled, for the response.
        self.throttle_ms = 0

    def take(self, partitions: int) -> None:
        """Charge partitions. Raises THROTTLING_QUOTA_EXCEEDED."""
        if self._meter is None:
            return
        now = self._clock.monotonic()
        throttle_s = self._meter.take(partitions, now, is_strict=self._is_strict)
        self.throttle_ms = max(self.throttle_ms, _milliseconds(throttle_s))
        if self._is_strict and throttle_s > 0:
            raise BrokerError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
            )


def _is_exempt(request: Message, version: int) -> bool:
    """Return whether only brokers send this request."""
    key = request.api_key
    if key == ApiKey.FETCH:
        assert isinstance(request, FetchRequest)
        state = request.replica_state
        return state is not None and state.replica_id >= 0
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return version >= _BROKERS_ADD_PARTITIONS_SINCE
    return key == ApiKey.WRITE_TXN_MARKERS or key >= PRIVATE_FROM


def _milliseconds(seconds: float) -> int:
    return min(round(seconds * 1000), INT32_MAX)
