"""The events of the audit trail that are not written yet: a bounded queue.

Recording an event never waits. When the queue is full, new events are dropped and counted: requests
go on while the audit topic cannot be written. Every client can cause denials and failures. All
events but changes that were made use at most half of the queue, so that nobody hides a change
behind a flood of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from millstream.env.clock import Clock
from millstream.security.audit_event import OK, AuditEvent, AuditKind

#: Longer texts are truncated: clients choose names, and an event must fit into a record.
TEXT_CHARACTERS_MAX: Final = 500


class AuditRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An event as it is written, in JSON."""

    timestamp_ms: int
    broker: int
    kind: str
    action: str
    principal: str
    address: str
    client_id: str
    resource: str
    outcome: str
    detail: str = ""


encode_record = msgspec.json.Encoder().encode


class AuditQueue:
    """Takes events for the writer (an `AuditTrail`). Event loop only."""

    __slots__ = ("_clock", "_events", "_events_max", "_node_id", "_wake", "dropped", "recorded")

    def __init__(self, node_id: int, clock: Clock, events_max: int) -> None:
        self._node_id = node_id
        self._clock = clock
        self._events_max = events_max
        self._events: deque[AuditRecord] = deque()
        self._wake = asyncio.Event()
        #: Totals since the start of the broker.
        self.recorded = 0
        self.dropped = 0

    def record(self, event: AuditEvent, /) -> None:
        is_change = event.kind is AuditKind.CHANGE and event.outcome == OK
        if len(self._events) >= (self._events_max if is_change else self._events_max // 2):
            self.dropped += 1
            return
        self.recorded += 1
        self._events.append(
            AuditRecord(
                timestamp_ms=self._clock.wall_ms(),
                broker=self._node_id,
                kind=event.kind.value,
                action=event.action,
                principal=_cut(event.principal),
                address=event.address,
                client_id=_cut(event.client_id),
                resource=_cut(event.resource),
                outcome=event.outcome,
                detail=_cut(event.detail),
            )
        )
        self._wake.set()

    def take(self, count_max: int) -> list[AuditRecord]:
        """Remove and return the oldest events."""
        events = self._events
        taken = [events.popleft() for _ in range(min(len(events), count_max))]
        if not events:
            self._wake.clear()
        return taken

    async def wait(self) -> None:
        """Return when there is an event."""
        await self._wake.wait()

    def __len__(self) -> int:
        return len(self._events)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX]
