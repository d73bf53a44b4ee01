"""Appends events to the topic `__audit`: here if this broker leads it, else on its leader.

The topic has one partition. The broker that leads the partition appends the events; other brokers
send theirs to it (AppendAudit, an API of Millstream's own). An event is in the leader's log when
`append` returns; it is replicated like a record with acks=1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from millstream.broker.audit.audit_queue import AuditRecord, encode_record
from millstream.broker.peer_link import PeerApi, PeerLinks, known_code
from millstream.broker.topic import TopicAdmin
from millstream.metadata.catalog import Catalog
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import read_header
from millstream.records.builder import build_batch
from millstream.records.record import Record
from millstream.replication.replicas import Replicas
from millstream.security.audit_event import AUDIT_TOPIC
from millstream.wire.messages.append_audit import AppendAuditRequest, AppendAuditResponse

_SEND_S_MAX: Final = 15.0
_PARTITION: Final = 0

_Event = AppendAuditRequest.Event


def append_locally(replicas: Replicas, events: Sequence[_Event]) -> None:
    """Append events as one batch. Raises NOT_LEADER_OR_FOLLOWER, and as `Partition.append`."""
    partition = replicas.find(AUDIT_TOPIC, _PARTITION)
    batch = build_batch(
        [
            Record(offset, event.timestamp_ms, event.key.encode(), event.value, [])
            for offset, event in enumerate(events)
        ]
    )
    partition.append(memoryview(batch), read_header(batch), acks_all=False)


class _Delivery:
    """Events to send to another broker."""

    __slots__ = ("events", "result")

    def __init__(self, events: Sequence[_Event]) -> None:
        self.events = events
        self.result: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def finish(self, code: ErrorCode) -> None:
        if not self.result.done():
            self.result.set_result(code)


class AuditApi(PeerApi[_Delivery]):
    """AppendAudit."""

    version = 0
    response = AppendAuditResponse

    def request(self, items: Sequence[_Delivery]) -> AppendAuditRequest:
        return AppendAuditRequest(events=[event for item in items for event in item.events])

    def complete(self, items: Sequence[_Delivery], response: AppendAuditResponse) -> None:
        for item in items:
            item.finish(known_code(response.error_code))

    def fail(self, item: _Delivery, code: ErrorCode) -> None:
        item.finish(code)


class AuditTopic:
    """The topic `__audit`, as the writer sees it."""

    __slots__ = ("_catalog", "_links", "_node_id", "_replicas", "_topics")

    def __init__(
        self,
        node_id: int,
        catalog: Catalog,
        replicas: Replicas,
        topics: TopicAdmin,
        links: PeerLinks[_Delivery],
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._replicas = replicas
        self._topics = topics
        self._links = links

    async def append(self, records: Sequence[AuditRecord]) -> None:
        """Append events; create the topic at its first use. Raises BrokerError; the events may then
        have been appended."""
        leader = await self._leader()
        events = events_of(records)
        if leader == self._node_id:
            append_locally(self._replicas, events)
            return
        delivery = _Delivery(events)
        self._links.put(leader, delivery)
        try:
            async with asyncio.timeout(_SEND_S_MAX):
                code = await delivery.result
        except TimeoutError:
            code = ErrorCode.REQUEST_TIMED_OUT
        if code != ErrorCode.NONE:
            raise BrokerError(code, f"broker {leader} did not append audit events")

    def append_now(self, records: Sequence[AuditRecord]) -> None:
        """Append events if this broker can do so without waiting. Raises BrokerError."""
        append_locally(self._replicas, events_of(records))

    async def _leader(self) -> int:
        found = self._catalog.image.partition(AUDIT_TOPIC, _PARTITION)
        if found is None:
            failures = await self._topics.create_missing([AUDIT_TOPIC])
            if failures:
                raise failures[AUDIT_TOPIC]
            found = self._catalog.image.partition(AUDIT_TOPIC, _PARTITION)
        if found is None or found.leader not in self._catalog.image.brokers:
            raise BrokerError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"partition 0 of {AUDIT_TOPIC} has no leader"
            )
        return found.leader


def events_of(records: Sequence[AuditRecord]) -> list[_Event]:
    return [
        _Event(timestamp_ms=record.timestamp_ms, key=record.principal, value=encode_record(record))
        for record in records
    ]
