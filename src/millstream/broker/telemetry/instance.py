"""Client instances: what each one has to push and when it may push. The cache is bounded. Pure.

An instance is known by its id. A client gets it from the first broker that it asks, and keeps it.
Another broker may first meet the id in a push, because the client has moved. That broker computes
what the client is to push; the same subscriptions give the same subscription id everywhere.

When a request is accepted:
    GetTelemetrySubscriptions  a push interval after the last request; at once after a push that
                               was rejected for its subscription id or compression
    PushTelemetry              after GetTelemetrySubscriptions, or a push interval after the last
                               push, or if it is the client's last; never after that one
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millstream.broker.context import Peer
from millstream.broker.telemetry.subscription import Wanted
from millstream.model.error import ErrorCode

INSTANCES_MAX: Final = 16_384
#: Silence after which a client is forgotten, if three push intervals are not longer.
EXPIRY_S_MIN: Final = 60.0
_EXPIRY_INTERVALS: Final = 3
_ASK_AGAIN: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class ClientInstance:
    __slots__ = (
        "_has_asked",
        "_pushed_at",
        "_requested_at",
        "expires_at",
        "is_terminated",
        "last_error",
        "peer",
        "version",
        "wanted",
    )

    def __init__(self, wanted: Wanted, version: int, peer: Peer) -> None:
        self.wanted = wanted
        #: The version of all subscriptions that `wanted` was computed from.
        self.version = version
        #: The connection of the last request.
        self.peer = peer
        self.is_terminated = False
        self.last_error = ErrorCode.NONE
        self.expires_at = 0.0
        #: When the last request, and the last push, was accepted.
        self._requested_at: float | None = None
        self._pushed_at: float | None = None
        #: Whether the client has asked since its last push.
        self._has_asked = False

    @property
    def interval_s(self) -> float:
        return self.wanted.interval_ms / 1000

    def touch(self, now: float, peer: Peer) -> None:
        self.peer = peer
        self.expires_at = now + max(EXPIRY_S_MIN, _EXPIRY_INTERVALS * self.interval_s)

    def take_get(self, now: float) -> bool:
        """Whether the client may ask for its subscriptions now; if so, that counts."""
        last = self._requested_at
        is_due = last is None or now - last >= self.interval_s
        if not is_due and self.last_error not in _ASK_AGAIN:
            return False
        self._requested_at = now
        self._has_asked = True
        self.last_error = ErrorCode.NONE
        return True

    def take_push(self, now: float, *, is_last: bool) -> bool:
        """Whether the client may push now; if so, that counts."""
        pushed_at = self._pushed_at
        is_due = (
            pushed_at is None
            # Clients vary the first interval after they asked, from half of it to one and a half.
            or self._has_asked
            or now - pushed_at >= self.interval_s
        )
        if is_due:
            self._requested_at = self._pushed_at = now
            self._has_asked = False
        return is_due or is_last


class ClientInstances:
    """Instances by id, the one that was used longest ago first."""

    __slots__ = ("_instances",)

    def __init__(self) -> None:
        self._instances: dict[bytes, ClientInstance] = {}

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: bytes) -> bool:
        return instance_id in self._instances

    def use(self, instance_id: bytes) -> ClientInstance | None:
        """Return the instance, now the last to be evicted."""
        found = self._instances.pop(instance_id, None)
        if found is not None:
            self._instances[instance_id] = found
        return found

    def put(self, instance_id: bytes, instance: ClientInstance) -> bytes | None:
        """Add or replace an instance; return the id of one that was evicted for it."""
        self._instances.pop(instance_id, None)
        self._instances[instance_id] = instance
        if len(self._instances) <= INSTANCES_MAX:
            return None
        evicted = next(iter(self._instances))
        del self._instances[evicted]
        return evicted

    def remove(self, instance_id: bytes, peer: Peer) -> bool:
        """Remove the instance unless another connection has used it since."""
        found = self._instances.get(instance_id)
        if found is None or found.peer is not peer:
            return False
        del self._instances[instance_id]
        return True

    def expire(self, now: float) -> Iterator[bytes]:
        """Remove those that were silent for too long, and yield their ids."""
        for instance_id, instance in list(self._instances.items()):
            if instance.expires_at <= now:
                del self._instances[instance_id]
                yield instance_id
