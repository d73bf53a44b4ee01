"""Client instances: what each one pushes, and when it may push. The cache is bounded. Pure.

An instance is identified by its id. A client gets the id from the first broker that it asks for its
subscription, and keeps it. Another broker may first see the id in a push, after the client has
moved. That broker computes the plan again; the same subscriptions give the same subscription id on
every broker.

When a request is accepted:
    GetTelemetrySubscriptions  a push interval after the last request; at once after a push that
                               was rejected for its subscription id or compression
    PushTelemetry              after GetTelemetrySubscriptions, or a push interval after the last
                               push, or if it is the client's last; never after that
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millstream.broker.context import ConnectedClient
from millstream.broker.telemetry.subscription import PushPlan
from millstream.model.error import ErrorCode

INSTANCES_MAX: Final = 16_384
#: A client expires after this time without a request, or after three push intervals if longer.
EXPIRY_S_MIN: Final = 60.0
_EXPIRY_INTERVALS: Final = 3
_ASK_AGAIN: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class ClientInstance:
    """One client: its push plan, and the times of its requests."""

    __slots__ = (
        "_has_subscribed",
        "_pushed_at",
        "_requested_at",
        "client",
        "expires_at",
        "is_terminated",
        "last_error",
        "plan",
        "version",
    )

    def __init__(self, plan: PushPlan, version: int, client: ConnectedClient) -> None:
        self.plan = plan
        #: The version of all subscriptions that `plan` was computed from.
        self.version = version
        #: The connection of the last request.
        self.client = client
        self.is_terminated = False
        self.last_error = ErrorCode.NONE
        self.expires_at = 0.0
        #: When the last request, and the last push, was accepted.
        self._requested_at: float | None = None
        self._pushed_at: float | None = None
        #: Whether the client has requested its subscription since its last push.
        self._has_subscribed = False

    @property
    def interval_s(self) -> float:
        return self.plan.interval_ms / 1000

    def touch(self, now: float, client: ConnectedClient) -> None:
        """Record a request of the client, which postpones its expiry."""
        self.client = client
        self.expires_at = now + max(EXPIRY_S_MIN, _EXPIRY_INTERVALS * self.interval_s)

    def accept_get(self, now: float) -> bool:
        """Return whether the client may request its subscription now; if so, record the request."""
        last = self._requested_at
        is_due = last is None or now - last >= self.interval_s
        if not is_due and self.last_error not in _ASK_AGAIN:
            return False
        self._requested_at = now
        self._has_subscribed = True
        self.last_error = ErrorCode.NONE
        return True

    def accept_push(self, now: float, *, is_last: bool) -> bool:
        """Return whether the client may push now; if so, record the push."""
        pushed_at = self._pushed_at
        is_due = (
            pushed_at is None
            # Clients vary the first interval after the request, from 0.5 to 1.5 of it.
            or self._has_subscribed
            or now - pushed_at >= self.interval_s
        )
        if is_due:
            self._requested_at = self._pushed_at = now
            self._has_subscribed = False
        return is_due or is_last


class ClientInstances:
    """Instances by id, the least recently used first."""

    __slots__ = ("_instances",)

    def __init__(self) -> None:
        self._instances: dict[bytes, ClientInstance] = {}

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: bytes) -> bool:
        return instance_id in self._instances

    def use(self, instance_id: bytes) -> ClientInstance | None:
        """Return the instance, and make it the most recently used."""
        found = self._instances.pop(instance_id, None)
        if found is not None:
            self._instances[instance_id] = found
        return found

    def put(self, instance_id: bytes, instance: ClientInstance) -> bytes | None:
        """Add or replace an instance; return the id of the instance that was evicted for it."""
        self._instances.pop(instance_id, None)
        self._instances[instance_id] = instance
        if len(self._instances) <= INSTANCES_MAX:
            return None
        evicted = next(iter(self._instances))
        del self._instances[evicted]
        return evicted

    def remove(self, instance_id: bytes, client: ConnectedClient) -> bool:
        """Remove the instance unless another connection has used it since."""
        found = self._instances.get(instance_id)
        if found is None or found.client is not client:
            return False
        del self._instances[instance_id]
        return True

    def expire(self, now: float) -> Iterator[bytes]:
        """Remove the instances that were silent for too long, and yield their ids."""
        for instance_id, instance in list(self._instances.items()):
            if instance.expires_at <= now:
                del self._instances[instance_id]
                yield instance_id
