"""What operators ask about transactions: of their coordinators, and of the partitions themselves.

A transaction hangs where a partition has it open and its coordinator knows nothing of it: nothing
will ever end it, and read-committed readers wait for ever. `hanging` compares the two sides, as
kafka-transactions.sh does: partitions say which producers have a transaction open, and since when;
coordinators which producer ids they know, and which partitions are part of their transactions.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.protocol import Cluster, refusal
from millstream.model.error import ErrorCode
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from millstream.wire.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_TRANSACTION: Final = 1
_RETRY_S: Final = 0.05
#: For a producer id that is made only to fence others; nobody writes with it.
_FENCING_TIMEOUT_MS: Final = 1

Described = DescribeTransactionsResponse.State


class Listed(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class OpenTransaction(NamedTuple):
    """A transaction as a partition sees it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


class TransactionAdmin:
    """Asks a whole cluster."""

    __slots__ = ("_cluster", "_timeout_s")

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    # Coordinators

    def listed(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        open_ms_min: int = -1,
        pattern: str | None = None,
    ) -> list[Listed]:
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=open_ms_min,
            transactional_id_pattern=pattern,
        )
        found: list[Listed] = []
        for node_id in self._cluster.broker_ids:
            answer = self._cluster.broker(node_id).call(request, ListTransactionsResponse)
            if answer.error_code:
                raise refusal(answer.error_code, f"asking broker {node_id} for transactions")
            found += [
                Listed(row.transactional_id, node_id, row.producer_id, row.transaction_state)
                for row in answer.transaction_states
            ]
        return sorted(found)

    def describe(self, transactional_id: str) -> tuple[int, Described]:
        """The transaction's coordinator and what it says."""
        node_id = self._coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = self._cluster.broker(node_id).call(request, DescribeTransactionsResponse)
        row: Described = answer.transaction_states[0]
        if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise CommandError(
                ExitCode.NOT_FOUND,
                f"there is no transactional id {transactional_id!r}: `millstream txn list` shows"
                " those that there are.",
            )
        if row.error_code:
            raise refusal(row.error_code, f"describing {transactional_id!r}")
        return node_id, row

    def fence(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, and fence its producer."""
        node_id, _ = self.describe(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS
        )
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._cluster.broker(node_id).call(request, InitProducerIdResponse)
            if not answer.error_code:
                return
            is_aborting = answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_aborting or time.monotonic() > deadline:
                raise refusal(answer.error_code, f"fencing the producer of {transactional_id!r}")
            time.sleep(_RETRY_S)

    def _coordinator(self, transactional_id: str) -> int:
        request = FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=_TRANSACTION)
        first = self._cluster.broker_ids[0]
        answer = self._cluster.broker(first).call(request, FindCoordinatorResponse)
        row = answer.coordinators[0]
        if row.error_code:
            raise refusal(row.error_code, f"looking for the coordinator of {transactional_id!r}")
        node_id: int = row.node_id
        return node_id

    # Partitions

    def open_transactions(self, topics: Collection[str] = ()) -> Iterator[OpenTransaction]:
        """Of the topics, or of all."""
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic in self._cluster.metadata.topics:
            if topic.name is None or (topics and topic.name not in topics):
                continue
            for each in topic.partitions:
                wanted = by_leader.setdefault(each.leader_id, {})
                wanted.setdefault(topic.name, []).append(each.partition_index)
        for leader, wanted in by_leader.items():
            yield from self._open_on(leader, wanted)

    def _open_on(self, leader: int, wanted: dict[str, list[int]]) -> Iterator[OpenTransaction]:
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.Topic(name=topic, partition_indexes=numbers)
                for topic, numbers in wanted.items()
            ]
        )
        answer = self._cluster.broker(leader).call(request, DescribeProducersResponse)
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    what = f"asking for the producers of {topic.name}-{partition.partition_index}"
                    raise refusal(partition.error_code, what)
                for each in partition.active_producers:
                    if each.current_txn_start_offset >= 0:
                        yield OpenTransaction(
                            topic.name,
                            partition.partition_index,
                            each.producer_id,
                            each.producer_epoch,
                            each.coordinator_epoch,
                            each.current_txn_start_offset,
                            each.last_timestamp,
                        )

    def hanging(self, idle_ms_min: int, topics: Collection[str] = ()) -> list[OpenTransaction]:
        """Open in partitions, quiet for so long, and unknown to any coordinator."""
        quiet_since_ms = time.time_ns() // 1_000_000 - idle_ms_min
        candidates = [
            each for each in self.open_transactions(topics) if each.last_timestamp <= quiet_since_ms
        ]
        if not candidates:
            return []
        known = {
            each.producer_id: each.transactional_id
            for each in self.listed(producer_ids=sorted({each.producer_id for each in candidates}))
        }
        parts = {
            producer_id: _partitions(self.describe(transactional_id)[1])
            for producer_id, transactional_id in known.items()
        }
        return sorted(
            each
            for each in candidates
            if (each.topic, each.partition) not in parts.get(each.producer_id, set())
        )

    def abort(self, hanging: OpenTransaction) -> None:
        """Write the marker that nobody else writes."""
        marker = WriteTxnMarkersRequest.Marker(
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
            transaction_result=False,
            # A partition that never saw a marker of the producer takes any epoch.
            coordinator_epoch=max(hanging.coordinator_epoch, 0),
            topics=[
                WriteTxnMarkersRequest.Marker.Topic(
                    name=hanging.topic, partition_indexes=[hanging.partition]
                )
            ],
        )
        leader = self._cluster.leader(hanging.topic, hanging.partition)
        request = WriteTxnMarkersRequest(markers=[marker])
        answer = self._cluster.broker(leader).call(request, WriteTxnMarkersResponse)
        code = answer.markers[0].topics[0].partitions[0].error_code
        if code:
            where = f"offset {hanging.start_offset} of {hanging.topic}-{hanging.partition}"
            raise refusal(code, f"aborting the transaction at {where}")


def _partitions(described: Described) -> set[tuple[str, int]]:
    return {(topic.topic, number) for topic in described.topics for number in topic.partitions}
