"""A transactional producer: reads one partition, writes others, and commits both atomically.

Each transaction reads partition 0 from the group's committed offset. It sends values to one or two
partitions with several requests in flight (`pipeline`). Then it commits the group's offset with
them, or aborts. A producer uses the classic protocol or transaction version 2.

The producer retries every request that may be retried. When it is fenced, or when the transaction
can't continue, it calls InitProducerId again with its transactional id. That aborts its open
transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NoReturn, TypeVar

from harness.history import Assign, Outcome, Poll, Send, Step
from harness.raw.raw_client import values_batch
from millstream.model.error import ErrorCode
from millstream.replication.peer import PeerError
from millstream.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TxnTopic,
)
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from millstream.wire.schema import Message
from sim.client import GROUP_KEY, TOPIC, TRANSACTION_KEY, partition_name
from sim.clock import EPOCH_MS
from sim.cluster import Cluster
from sim.history import History
from sim.pipeline import IN_FLIGHT_MAX, Batch, send_round
from sim.reader import Fetched, Reader

SOURCE: Final = 0
TIMEOUT_MS: Final = 1500
#: Longer than the timeouts within which a broker responds.
_ANSWER_S: Final = 1.3
_TRY_AGAIN: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.NETWORK_EXCEPTION,
)
_LOOK_FOR_LEADER: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
)
_OVER: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
)

_Response = TypeVar("_Response", bound=Message)


class _OverError(Exception):
    """The transaction or the producer can't continue."""


class TransactionalProducer(Reader):
    """Runs transactions. Two producers with the same transactional id fence each other."""

    def __init__(
        self,
        cluster: Cluster,
        number: int,
        transactional_id: str,
        partitions: Sequence[int],
        history: History,
    ) -> None:
        super().__init__(cluster, f"transactor-{number}", history, committed=True)
        self._transactional_id = transactional_id
        self.group = f"of-{transactional_id}"
        self._partitions = list(partitions)
        self._is_classic = self.random.random() < 0.3
        self._producer_id = self._epoch = -1
        #: Next sequence number by partition, in the current epoch.
        self._sequences: dict[int, int] = {}
        self._position = 0
        self._sent = 0
        self.is_finishing = False

    async def run(self) -> None:
        while not self.is_finishing:
            try:
                await self._start()
                while not self.is_finishing:
                    await self._transact()
                    await asyncio.sleep(self.random.expovariate(1 / 0.2))
            except _OverError as error:
                self.note(f"starts anew: {error}")
                await self.rest()

    # Requests

    async def _ask(
        self, kind: int, request: Any, version: int, response: type[_Response]
    ) -> _Response:
        """Retry until a coordinator responds. Only for requests that may be sent twice."""
        while True:
            try:
                return await self._ask_once(kind, request, version, response)
            except PeerError:
                await self.rest()

    async def _ask_once(
        self, kind: int, request: Any, version: int, response: type[_Response]
    ) -> _Response:
        key = self._transactional_id if kind == TRANSACTION_KEY else self.group
        address = await self.coordinator(kind, key)
        try:
            return await self.call(address, request, version, response, _ANSWER_S)
        except PeerError:
            self.forget_coordinator(kind, key)
            raise

    async def _try_again(self, what: str, code: int) -> None:
        """Wait after a retriable error. Raises _OverError for any other."""
        if code in _OVER:
            raise _OverError(f"{what}: {ErrorCode(code).name}")
        self.note(f"{what}: {ErrorCode(code).name}")
        if code not in _TRY_AGAIN:
            self._impossible(what, code)
        self.forget_coordinator(TRANSACTION_KEY, self._transactional_id)
        self.forget_coordinator(GROUP_KEY, self.group)
        await self.rest()

    def _impossible(self, what: str, code: int) -> NoReturn:
        self.violated(f"{what} failed with {ErrorCode(code).name}")
        raise _OverError(what)

    # Starting

    async def _start(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id, transaction_timeout_ms=TIMEOUT_MS
        )
        while True:
            response = await self._ask(TRANSACTION_KEY, request, 5, InitProducerIdResponse)
            if response.error_code == 0:
                break
            await self._try_again("a producer id", response.error_code)
        self._become(response.producer_id, response.producer_epoch)
        began_at = self.now
        self._position = max(await self._find_position(began_at), 0)
        self.note(f"is {self._producer_id} {self._epoch} at {self._position}")
        assign = Assign([partition_name(SOURCE)])
        self.history.end(self.history.begin(self.name), Outcome.OK, [assign])

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._producer_id, self._epoch = producer_id, epoch
            self._sequences.clear()

    async def _find_position(self, began_at: float) -> int:
        rows = OffsetFetchRequest.Group
        topics = [rows.Topic(name=TOPIC, partition_indexes=[SOURCE])]
        request = OffsetFetchRequest(
            groups=[rows(group_id=self.group, topics=topics)], require_stable=True
        )
        while True:
            (group,) = (await self._ask(GROUP_KEY, request, 9, OffsetFetchResponse)).groups
            code = group.error_code or group.topics[0].partitions[0].error_code
            if code == 0:
                break
            await self._try_again("the group's offset", code)
        offset = group.topics[0].partitions[0].committed_offset
        self.history.check_fetched(self.name, self.group, SOURCE, offset, began_at)
        return offset

    # One transaction

    async def _transact(self) -> None:
        fetched = await self.fetch(SOURCE, self._position, wait_ms=50)
        batches = self._plan()
        operation = self.history.begin(self.name, [batch.send for batch in batches])
        steps: list[Step] = []
        if fetched is not None and fetched.position > self._position:
            steps.append(Poll({partition_name(SOURCE): fetched.records}, group=self.group))
        outcome = Outcome.FAIL
        try:
            await self._send(batches)
            if steps and fetched is not None:
                await self._commit_offset(fetched)
            outcome = await self._end(is_commit=self.random.random() < 0.75)
        finally:
            self.history.end(operation, outcome, [*steps, *(batch.sent for batch in batches)])
        self.note(f"{outcome} {[batch.send.value for batch in batches]}")
        if outcome is Outcome.INFO:
            raise _OverError("the outcome is unknown")
        if outcome is Outcome.OK and steps and fetched is not None:
            self._position = fetched.position
            self.history.committed(self.group, SOURCE, fetched.position)

    def _plan(self) -> list[Batch]:
        """Draw the batches of a transaction: one to five requests, for one or two partitions."""
        targets = sorted(self.random.sample(self._partitions, self.random.choice((1, 2))))
        sequences = dict(self._sequences)
        batches: list[Batch] = []
        for request in range(self.random.choice((1, 2, IN_FLIGHT_MAX))):
            chosen = self.random.sample(targets, self.random.randint(1, len(targets)))
            batches += [self._batch(request, partition, sequences) for partition in sorted(chosen)]
        return batches

    def _batch(self, request: int, partition: int, sequences: dict[int, int]) -> Batch:
        self._sent += 1
        send = Send(partition_name(partition), f"{self.name}:{self._sent}")
        sequence = sequences.get(partition, 0)
        sequences[partition] = sequence + 1
        data = values_batch(
            send.value.encode(),
            timestamp=EPOCH_MS,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        return Batch(request, partition, send, sequence, data)

    async def _send(self, batches: Sequence[Batch]) -> None:
        """Send batches until all are acknowledged."""
        if self._is_classic:
            for partition in dict.fromkeys(batch.partition for batch in batches):
                await self._add(partition)
        version = 11 if self._is_classic else 12
        while unacknowledged := [batch for batch in batches if not batch.is_acknowledged]:
            await send_round(
                self, self._transactional_id, unacknowledged, version, _ANSWER_S, self._failed
            )
            if not all(batch.is_acknowledged for batch in batches):
                await self.rest()
        for batch in batches:
            self._sequences[batch.partition] = batch.sequence + 1

    def _failed(self, batch: Batch, code: int, is_excused: bool) -> None:
        """Handle a batch that was not acknowledged. Raises if the transaction can't continue."""
        if code == -1:
            self.note(f"lost: sequence {batch.sequence} of {batch.partition}")
        else:
            self.note(f"a batch: {ErrorCode(code).name}")
            if code in _OVER:
                raise _OverError("it can't send")
            is_gap = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if code not in _LOOK_FOR_LEADER and not (is_gap and is_excused):
                self._impossible("a batch", code)
        self.forget_leader(batch.partition)

    async def _add(self, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[TxnTopic(name=TOPIC, partitions=[partition])],
        )
        while True:
            response = await self._ask(TRANSACTION_KEY, request, 3, AddPartitionsToTxnResponse)
            row = response.results_by_topic_v3_and_below[0].results_by_partition[0]
            if row.partition_error_code == 0:
                return
            await self._try_again("a partition", row.partition_error_code)

    async def _commit_offset(self, fetched: Fetched) -> None:
        if self._is_classic:
            await self._add_offsets()
        rows = TxnOffsetCommitRequest.Topic
        row = rows.Partition(partition_index=SOURCE, committed_offset=fetched.position)
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=self.group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[rows(name=TOPIC, partitions=[row])],
        )
        version = 3 if self._is_classic else 5
        while True:
            response = await self._ask(GROUP_KEY, request, version, TxnOffsetCommitResponse)
            code = response.topics[0].partitions[0].error_code
            if code == 0:
                return
            await self._try_again("an offset", code)

    async def _add_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=self.group,
        )
        while True:
            response = await self._ask(TRANSACTION_KEY, request, 3, AddOffsetsToTxnResponse)
            if response.error_code == 0:
                return
            await self._try_again("a group", response.error_code)

    async def _end(self, *, is_commit: bool) -> Outcome:
        """End the transaction. Return INFO if its outcome can't be known."""
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=is_commit,
        )
        may_have_ended = False
        while True:
            try:
                version = 4 if self._is_classic else 5
                response = await self._ask_once(TRANSACTION_KEY, request, version, EndTxnResponse)
            except PeerError:
                may_have_ended = True
                await self.rest()
                continue
            if response.error_code == 0:
                if not self._is_classic:
                    self._become(response.producer_id, response.producer_epoch)
                return Outcome.OK if is_commit else Outcome.FAIL
            # A coordinator that lost its partition may have appended the decision.
            may_have_ended |= response.error_code in (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
            )
            try:
                await self._try_again("the end", response.error_code)
            except _OverError as error:
                if is_commit and may_have_ended:
                    return Outcome.INFO
                raise _OverError(f"aborted: {error}") from error
