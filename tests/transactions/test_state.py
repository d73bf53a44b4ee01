"""The state machine of a transactional id: each request in each state, in both protocols."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.coordination.topic_record import DamagedRecordError
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_TIMEOUT_MS
from millstream.model.topic import TopicPartition
from millstream.transactions.state import (
    LAST_EPOCH,
    EndRequest,
    Marker,
    PreparedTransaction,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
)
from millstream.transactions.transaction_record import decode_value

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT_MS = 1000
TIMER = ("timeout", "")


def started(epoch: int = 0, version: int = 2) -> TransactionMetadata:
    transaction = TransactionMetadata("bank", version)
    transaction.init_producer(0, TIMEOUT_MS, None, 7, "t")
    transaction.producer_epoch = epoch
    return transaction


def ongoing(epoch: int = 0, version: int = 2) -> TransactionMetadata:
    transaction = started(epoch, version)
    transaction.add_partitions(10, transaction.producer, [A, B], version, "t")
    return transaction


def completed(*, commit: bool, client: int, epoch: int = 0) -> TransactionMetadata:
    transaction = ongoing(epoch)
    end(transaction, commit=commit, client=client)
    for each in (A, B):
        transaction.marked(30, each)
    return transaction


def end(
    transaction: TransactionMetadata, *, commit: bool, client: int, new_id: int | None = None
) -> TransactionEffects:
    return transaction.end(20, EndRequest(transaction.producer, commit, client), new_id, "t")


def refused(call: Any) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        call()
    return caught.value.code


def reply(effects: TransactionEffects) -> Any:
    ((token, response),) = effects.replies
    assert token == "t"
    return response


def test_a_transaction_goes_through_its_states() -> None:
    transaction = started()
    assert (transaction.state, transaction.producer) == (
        TransactionState.EMPTY,
        ProducerIdAndEpoch(7, 0),
    )
    effects = transaction.add_partitions(10, transaction.producer, [A], 0, "t")
    assert transaction.state is TransactionState.ONGOING
    assert effects.timers == [(TIMER, 10 + TIMEOUT_MS)]
    again = transaction.add_partitions(15, transaction.producer, [A], 0, "t")
    assert (again.records, again.timers, reply(again)) == ([], [], None)
    more = transaction.add_partitions(16, transaction.producer, [B], 0, "t")
    assert more.timers == []
    assert transaction.start_ms == 10
    effects = end(transaction, commit=True, client=0)
    assert effects.marker == Marker(ProducerIdAndEpoch(7, 0), is_commit=True)
    assert effects.timers == [(TIMER, None)]
    assert reply(effects) == ProducerIdAndEpoch(7, 0)
    assert not transaction.marked(30, A).records
    assert transaction.partitions == {B}
    assert transaction.marked(31, B).records
    assert transaction.state is TransactionState.COMPLETE_COMMIT
    transaction.add_partitions(40, transaction.producer, [B], 0, "t")
    assert (transaction.state, transaction.start_ms) == (TransactionState.ONGOING, 40)


@pytest.mark.parametrize("commit", [True, False])
def test_all_requests_are_rejected_while_it_ends(commit: bool) -> None:
    transaction = ongoing()
    old = transaction.producer
    end(transaction, commit=commit, client=2)
    new = transaction.producer
    for producer in (old, new):
        for call in (
            lambda producer=producer: transaction.add_partitions(1, producer, [A], 2, "t"),
            lambda producer=producer: transaction.end(
                1, EndRequest(producer, commit, 2), None, "t"
            ),
            lambda producer=producer: transaction.end(
                1, EndRequest(producer, commit, 0), None, "t"
            ),
            lambda producer=producer: transaction.init_producer(1, 1, producer, None, "t"),
            lambda: transaction.init_producer(1, 1, None, None, "t"),
        ):
            assert refused(call) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert not transaction.expire(10**9, TIMER).records


def test_in_version_2_every_end_raises_the_epoch_and_markers_carry_it() -> None:
    transaction = ongoing()
    effects = end(transaction, commit=True, client=2)
    assert effects.marker == Marker(ProducerIdAndEpoch(7, 1), is_commit=True, version=2)
    assert reply(effects) == ProducerIdAndEpoch(7, 1)


def test_an_end_is_repeated_in_version_2_with_the_epoch_before() -> None:
    transaction = completed(commit=True, client=2)
    assert transaction.producer == ProducerIdAndEpoch(7, 1)
    before = EndRequest(ProducerIdAndEpoch(7, 0), True, 2)
    effects = transaction.end(40, before, None, "t")
    assert (reply(effects), effects.records) == (ProducerIdAndEpoch(7, 1), [])
    otherwise = EndRequest(ProducerIdAndEpoch(7, 0), False, 2)
    code = refused(lambda: transaction.end(40, otherwise, None, "t"))
    assert code == ErrorCode.INVALID_TXN_STATE
    foreign = EndRequest(ProducerIdAndEpoch(8, 0), True, 2)
    code = refused(lambda: transaction.end(40, foreign, None, "t"))
    assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("make", [started, lambda: completed(commit=True, client=2)])
def test_in_version_2_an_abort_without_partitions_raises_the_epoch(make: Any) -> None:
    transaction = make()
    epoch = transaction.producer_epoch
    code = refused(lambda: end(transaction, commit=True, client=2))
    assert code == ErrorCode.INVALID_TXN_STATE
    effects = end(transaction, commit=False, client=2)
    assert reply(effects) == ProducerIdAndEpoch(7, epoch + 1)
    assert transaction.state is TransactionState.PREPARE_ABORT
    transaction.marked(40, None)
    assert (transaction.state, transaction.start_ms) == (TransactionState.COMPLETE_ABORT, 20)


@pytest.mark.parametrize("commit", [True, False])
def test_in_the_classic_protocol_an_end_is_repeated_with_the_same_epoch(commit: bool) -> None:
    transaction = completed(commit=commit, client=0)
    assert reply(end(transaction, commit=commit, client=0)) == ProducerIdAndEpoch(7, 0)
    code = refused(lambda: end(transaction, commit=not commit, client=0))
    assert code == ErrorCode.INVALID_TXN_STATE


def test_a_timeout_fences_and_aborts() -> None:
    transaction = ongoing(version=0)
    effects = transaction.expire(10 + TIMEOUT_MS, TIMER)
    assert effects.marker == Marker(ProducerIdAndEpoch(7, 1), is_commit=False)
    assert effects.replies == []
    for each in (A, B):
        transaction.marked(2000, each)
    late = EndRequest(ProducerIdAndEpoch(7, 0), True, 0)
    code = refused(lambda: transaction.end(2001, late, None, "t"))
    assert code == ErrorCode.PRODUCER_FENCED


def test_an_initialisation_aborts_first_and_then_raises_the_epoch_again() -> None:
    transaction = ongoing()
    effects = transaction.init_producer(20, TIMEOUT_MS, None, None, "t")
    assert reply(effects) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert effects.marker == Marker(ProducerIdAndEpoch(7, 1), is_commit=False, version=2)
    for each in (A, B):
        transaction.marked(30, each)
    effects = transaction.init_producer(40, 5000, None, None, "t")
    assert reply(effects) == ProducerIdAndEpoch(7, 2)
    assert (transaction.timeout_ms, transaction.start_ms) == (5000, -1)


def test_a_producer_continues_from_its_current_or_previous_epoch() -> None:
    transaction = started(epoch=4)
    assert reply(
        transaction.init_producer(1, 1, ProducerIdAndEpoch(7, 4), None, "t")
    ) == ProducerIdAndEpoch(7, 5)
    # A retry after a lost response.
    assert reply(
        transaction.init_producer(1, 1, ProducerIdAndEpoch(7, 4), None, "t")
    ) == ProducerIdAndEpoch(7, 5)
    for foreign in (ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 6), ProducerIdAndEpoch(6, 5)):
        code = refused(lambda one=foreign: transaction.init_producer(1, 1, one, None, "t"))
        assert code == ErrorCode.PRODUCER_FENCED
    # A new producer was started, so the old one cannot continue.
    transaction.init_producer(1, 1, None, None, "t")
    code = refused(lambda: transaction.init_producer(1, 1, ProducerIdAndEpoch(7, 5), None, "t"))
    assert code == ErrorCode.PRODUCER_FENCED


def test_a_zombie_cannot_abort_its_successors_transaction() -> None:
    transaction = ongoing(epoch=4)
    code = refused(lambda: transaction.init_producer(1, 1, ProducerIdAndEpoch(7, 3), None, "t"))
    assert code == ErrorCode.PRODUCER_FENCED
    assert (transaction.state, transaction.producer) == (
        TransactionState.ONGOING,
        ProducerIdAndEpoch(7, 4),
    )
    # The producer of the transaction may abort it.
    effects = transaction.init_producer(1, 1, ProducerIdAndEpoch(7, 4), None, "t")
    assert reply(effects) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert transaction.state is TransactionState.PREPARE_ABORT


def test_exhausted_epochs_make_an_initialisation_use_a_new_id() -> None:
    transaction = started(epoch=LAST_EPOCH - 1)
    assert transaction.needs_producer_id()
    code = refused(lambda: transaction.init_producer(1, 1, None, None, "t"))
    assert code == ErrorCode.CONCURRENT_TRANSACTIONS
    held = transaction.producer
    assert reply(transaction.init_producer(1, 1, held, 8, "t")) == ProducerIdAndEpoch(8, 0)
    assert transaction.previous_producer_id == 7
    # The response was lost.
    assert reply(transaction.init_producer(1, 1, held, None, "t")) == ProducerIdAndEpoch(8, 0)


def test_exhausted_epochs_make_an_end_use_a_new_id() -> None:
    transaction = ongoing(epoch=LAST_EPOCH - 1)
    held = transaction.producer
    code = refused(lambda: end(transaction, commit=True, client=2))
    assert code == ErrorCode.CONCURRENT_TRANSACTIONS
    effects = end(transaction, commit=True, client=2, new_id=8)
    assert reply(effects) == ProducerIdAndEpoch(8, 0)
    assert effects.marker == Marker(ProducerIdAndEpoch(7, LAST_EPOCH), is_commit=True, version=2)
    replayed = TransactionMetadata("bank", 2)
    value = decode_value(effects.records[0][1])
    assert value is not None
    replayed.restore(value)
    for each in (transaction, replayed):
        each.marked(30, A)
        each.marked(30, B)
        assert each.producer == ProducerIdAndEpoch(8, 0)
        assert reply(each.end(40, EndRequest(held, True, 2), None, "t")) == ProducerIdAndEpoch(8, 0)


def test_no_producer_gets_the_last_epoch() -> None:
    transaction = ongoing(epoch=LAST_EPOCH - 1)
    held = transaction.producer
    transaction.expire(10**6, TIMER)
    for each in (A, B):
        transaction.marked(30, each)
    assert transaction.producer_epoch == LAST_EPOCH
    code = refused(lambda: transaction.end(40, EndRequest(held, False, 2), None, "t"))
    assert code == ErrorCode.PRODUCER_FENCED
    assert reply(transaction.init_producer(50, 1, None, 8, "t")) == ProducerIdAndEpoch(8, 0)


def test_partitions_are_checked() -> None:
    transaction = started()
    transaction.add_partitions(1, transaction.producer, [A], 0, "t")
    codes = transaction.check_partitions(transaction.producer, [A, B])
    assert codes == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    code = refused(lambda: transaction.check_partitions(ProducerIdAndEpoch(7, 1), [A]))
    assert code == ErrorCode.PRODUCER_FENCED
    code = refused(lambda: transaction.check_partitions(ProducerIdAndEpoch(8, 0), [A]))
    assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_loaded_transaction_continues() -> None:
    transaction = ongoing()
    assert transaction.loaded(500).timers == [(TIMER, 10 + TIMEOUT_MS)]
    assert transaction.loaded(5000).timers == [(TIMER, 5000)]
    end(transaction, commit=True, client=0)
    assert transaction.loaded(500).marker == Marker(ProducerIdAndEpoch(7, 0), is_commit=True)


def test_only_idle_ids_expire() -> None:
    assert started().is_expired(100, 100)
    assert not started().is_expired(99, 100)
    assert completed(commit=True, client=2).is_expired(130, 100)
    assert not ongoing().is_expired(10**9, 100)
    transaction = ongoing()
    end(transaction, commit=True, client=2)
    assert not transaction.is_expired(10**9, 100)


@pytest.mark.parametrize(("version", "first_byte"), [(0, 0), (1, 1), (2, 1)])
def test_records_have_the_version_that_the_cluster_can_read(version: int, first_byte: int) -> None:
    transaction = TransactionMetadata("bank", version)
    effects = transaction.init_producer(0, 1, None, 7, "t")
    encoded = effects.records[0][1]
    assert encoded is not None
    assert encoded[1] == first_byte


def test_states_that_are_never_written_are_damage() -> None:
    for number in (6, 7, 8):
        value = decode_value(started().init_producer(0, 1, None, None, "t").records[0][1])
        assert value is not None
        value.transaction_status = number
        with pytest.raises(DamagedRecordError):
            TransactionMetadata("bank", 2).restore(value)


def prepared(epoch: int = 0, new_id: int | None = None) -> TransactionMetadata:
    transaction = ongoing(epoch)
    transaction.keep_prepared(15, NO_TIMEOUT_MS, transaction.producer, new_id, "t")
    return transaction


def replayed(transaction: TransactionMetadata, effects: TransactionEffects) -> TransactionMetadata:
    value = decode_value(effects.records[-1][1])
    assert value is not None
    copy = TransactionMetadata("bank", transaction.version)
    copy.restore(value)
    return copy


def test_a_prepared_transaction_stays_until_its_holder_ends_it() -> None:
    transaction = ongoing()
    writer = transaction.producer
    effects = transaction.keep_prepared(15, NO_TIMEOUT_MS, writer, None, "t")
    holder = ProducerIdAndEpoch(7, 1)
    assert reply(effects) == PreparedTransaction(holder, writer)
    assert effects.timers == [(TIMER, None)]
    copy = replayed(transaction, effects)
    assert copy.loaded(10**12).timers == [(TIMER, None)]
    for each in (transaction, copy):
        assert (each.state, each.producer, each.current) == (
            TransactionState.ONGOING,
            writer,
            holder,
        )
        assert not each.is_expired(10**12, 1)
        assert refused(lambda t=each: t.end(16, EndRequest(writer, True, 0), None, "t")) == (
            ErrorCode.PRODUCER_FENCED
        )
        for producer in (writer, holder):
            with pytest.raises(BrokerError):
                each.add_partitions(16, producer, [A], 0, "t")
        ended = each.end(17, EndRequest(holder, True, 0), None, "t")
        assert ended.marker == Marker(holder, is_commit=True)
        for partition in (A, B):
            each.marked(18, partition)
        # The response was lost.
        assert reply(each.end(19, EndRequest(holder, True, 0), None, "t")) == holder


def test_only_the_producer_that_missed_the_response_may_prepare_again() -> None:
    transaction = prepared()
    writer, holder = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(7, 1)
    again = transaction.keep_prepared(16, NO_TIMEOUT_MS, writer, None, "t")
    assert (reply(again), again.records) == (PreparedTransaction(holder, writer), [])
    for foreign in (ProducerIdAndEpoch(7, 2), ProducerIdAndEpoch(8, 0)):
        code = refused(
            lambda one=foreign: transaction.keep_prepared(16, NO_TIMEOUT_MS, one, None, "t")
        )
        assert code == ErrorCode.PRODUCER_FENCED
    recovered = transaction.keep_prepared(17, NO_TIMEOUT_MS, None, None, "t")
    assert reply(recovered) == PreparedTransaction(ProducerIdAndEpoch(7, 2), writer)
    code = refused(lambda: transaction.end(18, EndRequest(holder, True, 0), None, "t"))
    assert code == ErrorCode.PRODUCER_FENCED


def test_a_new_producer_aborts_a_prepared_transaction() -> None:
    transaction = prepared()
    effects = transaction.init_producer(20, TIMEOUT_MS, None, None, "t")
    assert reply(effects) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert effects.marker == Marker(ProducerIdAndEpoch(7, 2), is_commit=False, version=2)
    for each in (A, B):
        transaction.marked(30, each)
    code = refused(
        lambda: transaction.end(31, EndRequest(ProducerIdAndEpoch(7, 1), True, 0), None, "t")
    )
    assert code == ErrorCode.PRODUCER_FENCED
    assert reply(transaction.init_producer(40, TIMEOUT_MS, None, None, "t")) == ProducerIdAndEpoch(
        7, 3
    )


@pytest.mark.parametrize(
    ("client", "goes_on"), [(0, ProducerIdAndEpoch(8, 0)), (2, ProducerIdAndEpoch(8, 1))]
)
def test_exhausted_epochs_give_a_holder_a_new_id(client: int, goes_on: ProducerIdAndEpoch) -> None:
    transaction = ongoing(epoch=LAST_EPOCH - 1)
    assert transaction.needs_producer_id()
    code = refused(lambda: transaction.keep_prepared(15, NO_TIMEOUT_MS, None, None, "t"))
    assert code == ErrorCode.CONCURRENT_TRANSACTIONS
    effects = transaction.keep_prepared(15, NO_TIMEOUT_MS, None, 8, "t")
    assert reply(effects) == PreparedTransaction(
        ProducerIdAndEpoch(8, 0), ProducerIdAndEpoch(7, LAST_EPOCH - 1)
    )
    for each in (replayed(transaction, effects), transaction):
        ended = each.end(20, EndRequest(ProducerIdAndEpoch(8, 0), True, client), None, "t")
        assert reply(ended) == goes_on
        assert ended.marker == Marker(
            ProducerIdAndEpoch(7, LAST_EPOCH), is_commit=True, version=client
        )
        for partition in (A, B):
            each.marked(30, partition)
        assert each.producer == goes_on
        assert (
            reply(each.end(31, EndRequest(ProducerIdAndEpoch(8, 0), True, client), None, "t"))
            == goes_on
        )


def test_keeping_without_an_open_transaction_initialises() -> None:
    transaction = started()
    effects = transaction.keep_prepared(5, NO_TIMEOUT_MS, None, None, "t")
    assert reply(effects) == PreparedTransaction(ProducerIdAndEpoch(7, 1), None)
    assert transaction.add_partitions(6, ProducerIdAndEpoch(7, 1), [A], 2, "t").timers == [
        (TIMER, None)
    ]


def test_a_prepared_transaction_with_a_timeout_still_times_out() -> None:
    transaction = ongoing()
    effects = transaction.keep_prepared(15, 5000, None, None, "t")
    assert effects.timers == [(TIMER, 10 + 5000)]
    effects = transaction.expire(6000, TIMER)
    assert effects.marker == Marker(ProducerIdAndEpoch(7, 2), is_commit=False, version=2)
