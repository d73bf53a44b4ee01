"""Which batches of a transaction a partition may take (KIP-890).

A partition that takes a batch of a transaction that its coordinator does not know of, or has ended,
would never get the marker that ends it, and hold up its readers for ever. So the first batch of a
transaction in a partition is admitted by the coordinator: it says whether the partition was added
(the classic protocol), or adds it (transaction version 2). While the transaction is open in the
partition, further batches of the same epoch need no admission.

A producer of version 2 begins its next transaction as soon as the one before is decided, and its
markers may still be on their way. Then the coordinator is asked again, and waits for the markers:
clients rest much longer before they retry.

The coordinator's answer may have to wait; by then the transaction may have ended, and its marker
may have been written. So a batch is appended only if the partition is led in the same epoch as when
the coordinator was asked, and has had no marker since that may be of this transaction. Else the
producer is to try again.
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

#: Longest wait for the markers of the transaction before.
_ENDING_S_MAX: Final = 1.0
#: How much longer each rest is before the coordinator is asked again, and the longest.
_REST_S_STEP: Final = 0.001
_REST_S_MAX: Final = 0.02

#: The coordinator can't say just now, or could not be asked.
UNDECIDED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        # Its broker has not heard of a new topic yet.
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class _Moment(NamedTuple):
    """When the coordinator was asked about a partition, by the partition's own time."""

    leader_epoch: int
    end_offset: int


class Admission:
    """What the coordinator said about partitions that a producer writes to."""

    __slots__ = (
        "_codes",
        "_default_code",
        "_failures",
        "_find_coordinator",
        "_is_added",
        "_is_waived",
        "_moments",
        "_producer",
        "_rest_s",
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
        self._moments: dict[TopicPartition, _Moment] = {}
        self._is_waived = False
        #: Whether partitions are added, by transaction version 2, and not only verified.
        self._is_added = False
        #: For partitions that the coordinator was not asked about: those that this broker did not
        #: lead when it asked. The producer retries.
        self._default_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        #: By the loop's clock; set when the transaction before is first found not to have ended.
        self._wait_until: float | None = None
        self._rest_s = 0.0

    def waive(self) -> None:
        """Admit everything: the broker is set not to ask."""
        self._is_waived = True

    def reject_all(self, code: ErrorCode) -> None:
        """Admit nothing that is not part of the transaction already."""
        self._codes = {}
        self._default_code = code

    def ask(
        self,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[Partition],
        then: Callable[[], None],
        *,
        adds: bool,
    ) -> None:
        """Have partitions admitted; `then` is called when that is decided, perhaps at once."""
        self._producer = producer
        self._is_added = adds
        names = [each.topic_partition for each in partitions]
        self._moments = {
            each.topic_partition: _Moment(each.leader_epoch, each.log.log_end_offset)
            for each in partitions
        }
        coordinator = self._find_coordinator(self._transactional_id)

        def decided(codes: _Codes | None) -> None:
            self._codes = codes or dict.fromkeys(names, ErrorCode.NONE)
            then()

        def refused(code: ErrorCode) -> None:
            if code == ErrorCode.CONCURRENT_TRANSACTIONS and adds and self._has_time():
                self._ask_again(lambda: self.ask(producer, partitions, then, adds=adds))
                return
            self._codes = dict.fromkeys(names, code)
            then()

        reply: Reply[Any] = Reply(ReplyKind.ADMISSION, self._failures, refused, decided)
        transactional_id = self._transactional_id

        def begin() -> None:
            if adds and self._wait_until is not None:
                coordinator.add_partitions_after_end(
                    transactional_id, producer, names, BUMPING_VERSION, reply, self._time_left_s
                )
            elif adds:
                coordinator.add_partitions(
                    transactional_id, producer, names, BUMPING_VERSION, reply
                )
            else:
                coordinator.verify_partitions(transactional_id, producer, names, reply)
            coordinator.flush(transactional_id)

        # Also called by a timer, where a failure would reach nobody.
        reply.run(begin)

    def _has_time(self) -> bool:
        """Whether to wait (on) for the end of the transaction before."""
        now = asyncio.get_running_loop().time()
        if self._wait_until is None:
            self._wait_until = now + _ENDING_S_MAX
        return now < self._wait_until

    @property
    def _time_left_s(self) -> float:
        assert self._wait_until is not None
        return max(self._wait_until - asyncio.get_running_loop().time(), 0.0)

    def _ask_again(self, ask: Callable[[], None]) -> None:
        """Ask once more. The coordinator waits for the transaction that is ending; rests in between
        are for a coordinator that does not."""
        if not self._rest_s:
            ask()
        else:
            asyncio.get_running_loop().call_later(self._rest_s, ask)
        self._rest_s = min(self._rest_s + _REST_S_STEP, _REST_S_MAX)

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
        """For a partition that was admitted when the coordinator was asked."""
        if producer != self._producer:
            return ErrorCode.INVALID_TXN_STATE
        moment = self._moments[partition.topic_partition]
        if partition.leader_epoch != moment.leader_epoch:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._is_added:
            # A marker of this transaction has a later epoch, after which the log takes no batch of
            # this one. Markers of the transaction before may have arrived meanwhile.
            return ErrorCode.NONE
        if partition.log.producer_state.has_marker_since(producer.producer_id, moment.end_offset):
            # Of this transaction, or the one before it: only the coordinator knows, so the producer
            # is to try again.
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE


def is_verified(context: Context) -> bool:
    """Whether batches of the classic protocol need to be admitted."""
    return context.services.config.transactions.transaction_partition_verification_enable
