"""Admission: which batches of a transaction a partition may append (KIP-890).

A partition that appends a batch of a transaction which its coordinator does not know, or has ended,
never gets the marker that ends it, and blocks its readers for ever. So the coordinator admits the
first batch of a transaction in each partition: it verifies that the partition was added (classic
protocol), or adds it (transaction version 2). While the transaction is open in the partition,
further batches of the same epoch need no admission.

A producer of version 2 begins its next transaction as soon as the previous one is decided, while
markers of the previous one may still be pending. Then the request is repeated, and the coordinator
waits for the markers, because clients would wait much longer before they retry.

The coordinator may reply late. By then the transaction may have ended, and its marker may have been
written. So a batch is appended only if the partition still has the leader epoch that it had at the
request, and has had no marker since that may belong to this transaction. Otherwise the producer
retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from millstream.broker.context import Context
from millstream.broker.transaction.remote_admission import AdmittingCoordinator
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.replication.partition import Partition
from millstream.transactions.state import BUMPING_VERSION

_Codes = dict[TopicPartition, ErrorCode]

#: Longest wait for the markers of the previous transaction.
_ENDING_S_MAX: Final = 1.0
#: Increment of the pause before each retry of a request to the coordinator, and its maximum.
_PAUSE_S_STEP: Final = 0.001
_PAUSE_S_MAX: Final = 0.02

#: Errors after which the producer retries: the coordinator cannot decide now, or was not reached.
UNDECIDED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        # The coordinator's broker does not know a new topic yet.
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class _Snapshot(NamedTuple):
    """The state of a partition when its admission was requested."""

    leader_epoch: int
    end_offset: int


class Admission:
    """The coordinator's decisions about the partitions that a producer writes to."""

    __slots__ = (
        "_codes",
        "_default_code",
        "_failures",
        "_find_coordinator",
        "_is_added",
        "_is_waived",
        "_pause_s",
        "_producer",
        "_snapshots",
        "_transactional_id",
        "_wait_until",
    )

    def __init__(
        self,
        find_coordinator: Callable[[str], AdmittingCoordinator],
        transactional_id: str,
        failures: CallbackFailures,
    ) -> None:
        self._find_coordinator = find_coordinator
        self._transactional_id = transactional_id
        self._failures = failures
        self._producer = ProducerIdAndEpoch(-1, -1)
        self._codes: _Codes = {}
        self._snapshots: dict[TopicPartition, _Snapshot] = {}
        self._is_waived = False
        #: Whether partitions are added (transaction version 2) instead of verified.
        self._is_added = False
        #: For partitions that were not in the request, because this broker did not lead them then.
        #: The producer retries.
        self._default_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        #: By the loop's clock; set once the previous transaction is found not to have ended.
        self._wait_until: float | None = None
        self._pause_s = 0.0

    def waive(self) -> None:
        """Admit everything: the settings disable verification."""
        self._is_waived = True

    def reject_all(self, code: ErrorCode) -> None:
        """Reject every partition that is not part of the transaction already."""
        self._codes = {}
        self._default_code = code

    def request(
        self,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[Partition],
        then: Callable[[], None],
        *,
        adds: bool,
    ) -> None:
        """Request the admission of partitions; call `then` once it is decided, perhaps at once."""
        self._producer = producer
        self._is_added = adds
        names = [each.topic_partition for each in partitions]
        self._snapshots = {
            each.topic_partition: _Snapshot(each.leader_epoch, each.log.log_end_offset)
            for each in partitions
        }

        def decided(codes: _Codes | None) -> None:
            self._codes = codes or dict.fromkeys(names, ErrorCode.NONE)
            then()

        def rejected(code: ErrorCode) -> None:
            if code == ErrorCode.CONCURRENT_TRANSACTIONS and adds and self._has_time():
                self._retry(lambda: self.request(producer, partitions, then, adds=adds))
                return
            self._codes = dict.fromkeys(names, code)
            then()

        reply: Reply[Any] = Reply(ReplyKind.ADMISSION, self._failures, rejected, decided)
        # A timer calls this too, and would drop an exception. The reply reports it.
        reply.run(lambda: self._send(names, reply))

    def _send(self, names: Sequence[TopicPartition], reply: Reply[Any]) -> None:
        """Send the request for the partitions to the coordinator, which ends `reply`."""
        transactional_id, producer = self._transactional_id, self._producer
        coordinator = self._find_coordinator(transactional_id)
        if not self._is_added:
            coordinator.verify_partitions(transactional_id, producer, names, reply)
        elif self._wait_until is None:
            coordinator.add_partitions(transactional_id, producer, names, BUMPING_VERSION, reply)
        else:
            coordinator.add_partitions_after_end(
                transactional_id, producer, names, BUMPING_VERSION, reply, self._time_left_s
            )
        coordinator.flush(transactional_id)

    def _has_time(self) -> bool:
        """Return whether to keep waiting for the end of the previous transaction."""
        now = asyncio.get_running_loop().time()
        if self._wait_until is None:
            self._wait_until = now + _ENDING_S_MAX
        return now < self._wait_until

    @property
    def _time_left_s(self) -> float:
        assert self._wait_until is not None
        return max(self._wait_until - asyncio.get_running_loop().time(), 0.0)

    def _retry(self, request: Callable[[], None]) -> None:
        """Repeat the request, from the second time on after a pause.

        The coordinator itself waits for the transaction that is ending. The pauses are for a
        coordinator of an earlier version, which does not."""
        if not self._pause_s:
            request()
        else:
            asyncio.get_running_loop().call_later(self._pause_s, request)
        self._pause_s = min(self._pause_s + _PAUSE_S_STEP, _PAUSE_S_MAX)

    def check(self, partition: Partition, producer: ProducerIdAndEpoch) -> None:
        """Raise unless a batch of the producer's transaction may be appended now."""
        if self._is_waived or partition.log.producer_state.has_open_transaction(*producer):
            return
        topic_partition = partition.topic_partition
        code = self._codes.get(topic_partition, self._default_code)
        if code == ErrorCode.NONE:
            code = self._present_code(partition, producer)
        if code != ErrorCode.NONE:
            raise BrokerError(code, f"{topic_partition} is not part of the producer's transaction")

    def _present_code(self, partition: Partition, producer: ProducerIdAndEpoch) -> ErrorCode:
        """Return the code for a partition that the coordinator has admitted."""
        if producer != self._producer:
            return ErrorCode.INVALID_TXN_STATE
        snapshot = self._snapshots[partition.topic_partition]
        if partition.leader_epoch != snapshot.leader_epoch:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._is_added:
            # A marker of this transaction has a later epoch, after which the log rejects batches of
            # this epoch. Markers of the previous transaction may have arrived meanwhile.
            return ErrorCode.NONE
        if partition.log.producer_state.has_marker_since(producer.producer_id, snapshot.end_offset):
            # Of this transaction or of the one before: only the coordinator knows, so the producer
            # has to retry.
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE


def is_verified(context: Context) -> bool:
    """Return whether batches of the classic protocol need admission."""
    return context.services.config.transactions.transaction_partition_verification_enable
