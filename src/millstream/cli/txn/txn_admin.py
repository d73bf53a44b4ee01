"""The requests of the `txn` commands, to coordinators and to partition leaders.

A transaction hangs if a partition has it open but no coordinator knows it. Nothing ends it, and
read-committed consumers wait forever. `hanging` compares both sides, as kafka-transactions.sh does:
partitions know which producers have an open transaction, and since when; coordinators know the
producer ids and the partitions of their transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from millstream.cli.support.cluster_connection import rejection
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.model.error import ErrorCode
from millstream.protocol.cluster_client import TRANSACTION, ClusterClient
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
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

_RETRY_S: Final = 0.05
#: The transaction timeout of a producer id that only fences others and never writes.
_FENCING_TIMEOUT_MS: Final = 1

Described = DescribeTransactionsResponse.State
#: Gets the number of partitions that were read, and of all.
OnProgress: TypeAlias = Callable[[int, int], None]


def _ignore(done: int, total: int) -> None:
    """Report no progress."""


class Listed(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class OpenTransaction(NamedTuple):
    """An open transaction of a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


class TransactionAdmin:
    """Sends requests about transactions to all brokers of a cluster."""

    __slots__ = ("_cluster", "_timeout_s")

    def __init__(self, cluster: ClusterClient, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    # Coordinators

    def listed(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        open_ms_min: int = -1,
    ) -> list[Listed]:
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=open_ms_min,
        )
        found: list[Listed] = []
        for node_id in self._cluster.broker_ids:
            response = self._cluster.broker_connection(node_id).call(
                request, ListTransactionsResponse
            )
            if response.error_code:
                raise rejection(
                    response.error_code, f"listing the transactions of broker {node_id}"
                )
            found += [
                Listed(row.transactional_id, node_id, row.producer_id, row.transaction_state)
                for row in response.transaction_states
            ]
        return sorted(found)

    def describe(self, transactional_id: str) -> tuple[int, Described]:
        """Return the coordinator of a transactional id, and its description."""
        coordinator = self._cluster.coordinator(transactional_id, TRANSACTION)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        connection = self._cluster.connection(coordinator.address)
        row = connection.call(request, DescribeTransactionsResponse).transaction_states[0]
        if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise CommandError(
                ExitCode.NOT_FOUND,
                f"there is no transactional id {transactional_id!r}: `millstream txn list` shows"
                " all ids.",
            )
        if row.error_code:
            raise rejection(row.error_code, f"describing {transactional_id!r}")
        return coordinator.node_id, row

    def fence(self, transactional_id: str) -> None:
        """Abort the open transaction of an id and fence its producer."""
        self.describe(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS
        )
        deadline = time.monotonic() + self._timeout_s
        while True:
            connection = self._cluster.coordinator_connection(transactional_id, TRANSACTION)
            response = connection.call(request, InitProducerIdResponse)
            if not response.error_code:
                return
            is_aborting = response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_aborting or time.monotonic() > deadline:
                raise rejection(
                    response.error_code, f"fencing the producer of {transactional_id!r}"
                )
            time.sleep(_RETRY_S)

    # Partitions

    def open_transactions(
        self, topics: Collection[str] = (), on_progress: OnProgress = _ignore
    ) -> Iterator[OpenTransaction]:
        """Yield the open transactions of the topics, or of all topics."""
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic in self._cluster.topics():
            if topics and topic.name not in topics:
                continue
            for partition, leader in topic.leaders.items():
                by_leader.setdefault(leader, {}).setdefault(topic.name, []).append(partition)
        counts = [sum(map(len, wanted.values())) for wanted in by_leader.values()]
        done, total = 0, sum(counts)
        on_progress(done, total)
        for (leader, wanted), count in zip(by_leader.items(), counts, strict=True):
            yield from self._open_on(leader, wanted)
            done += count
            on_progress(done, total)

    def _open_on(self, leader: int, wanted: dict[str, list[int]]) -> Iterator[OpenTransaction]:
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.Topic(name=topic, partition_indexes=numbers)
                for topic, numbers in wanted.items()
            ]
        )
        response = self._cluster.broker_connection(leader).call(request, DescribeProducersResponse)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    what = f"describing the producers of {topic.name}-{partition.partition_index}"
                    raise rejection(partition.error_code, what)
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

    def hanging(
        self,
        idle_ms_min: int,
        topics: Collection[str] = (),
        on_progress: OnProgress = _ignore,
    ) -> list[OpenTransaction]:
        """Return open transactions that no coordinator knows, idle for at least `idle_ms_min`."""
        idle_since_ms = time.time_ns() // 1_000_000 - idle_ms_min
        candidates = [
            each
            for each in self.open_transactions(topics, on_progress)
            if each.last_timestamp <= idle_since_ms
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
        """Write the abort marker that no coordinator writes."""
        marker = WriteTxnMarkersRequest.Marker(
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
            transaction_result=False,
            # A partition without a marker of this producer accepts any coordinator epoch.
            coordinator_epoch=max(hanging.coordinator_epoch, 0),
            topics=[
                WriteTxnMarkersRequest.Marker.Topic(
                    name=hanging.topic, partition_indexes=[hanging.partition]
                )
            ],
        )
        connection = self._cluster.leader_connection(hanging.topic, hanging.partition)
        request = WriteTxnMarkersRequest(markers=[marker])
        response = connection.call(request, WriteTxnMarkersResponse)
        code = response.markers[0].topics[0].partitions[0].error_code
        if code:
            where = f"offset {hanging.start_offset} of {hanging.topic}-{hanging.partition}"
            raise rejection(code, f"aborting the transaction at {where}")


def _partitions(described: Described) -> set[tuple[str, int]]:
    return {(topic.topic, number) for topic in described.topics for number in topic.partitions}
