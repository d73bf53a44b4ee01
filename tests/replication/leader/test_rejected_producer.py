"""Batches of a producer that follow a rejected batch."""

from __future__ import annotations

import pytest

from harness.raw.raw_client import values_batch
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import BatchHeader, read_header
from millstream.replication.leader.rejected_producer import RejectedProducers

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FULL = ErrorCode.KAFKA_STORAGE_ERROR
RETRIED = [
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.CONCURRENT_TRANSACTIONS,
]


def batch(sequence: int, producer_id: int = 1, epoch: int = 0, count: int = 1) -> BatchHeader:
    return read_header(
        values_batch(
            *[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
    )


def check(rejected: RejectedProducers, header: BatchHeader, *, is_known: bool = True) -> ErrorCode:
    try:
        rejected.check(header, is_known=is_known)
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize("code", RETRIED)
def test_later_batches_get_the_same_error(code: ErrorCode) -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), code)
    assert [check(rejected, batch(sequence)) for sequence in (6, 7, 8, 9)] == [code] * 4


def test_a_client_that_does_not_retry_gets_an_out_of_order_error() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    codes = [check(rejected, batch(sequence)) for sequence in range(6, 12)]
    assert codes[4:] == [OUT_OF_ORDER] * 2


def test_each_retry_of_the_rejected_batch_resets_the_count() -> None:
    rejected = RejectedProducers()
    for _ in range(3):
        assert check(rejected, batch(5)) == ErrorCode.NONE
        rejected.reject(batch(5), FULL)
        codes = [check(rejected, batch(sequence)) for sequence in (6, 7, 8, 9)]
        assert codes == [FULL] * 4


def test_the_lowest_rejected_sequence_must_be_appended_first() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    rejected.reject(batch(6), FULL)
    rejected.reject(batch(3), FULL)
    assert [check(rejected, batch(sequence)) for sequence in (3, 5, 6)] == [0, FULL, FULL]


def test_the_rejected_batch_may_be_split() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5, count=4), FULL)
    rejected.appended(batch(5, count=2))
    assert check(rejected, batch(7, count=2)) == ErrorCode.NONE
    assert len(rejected) == 0


def test_the_duplicate_of_an_earlier_batch_changes_nothing() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    rejected.appended(batch(3, count=2))
    assert check(rejected, batch(6)) == FULL


def test_sequences_wrap_around() -> None:
    last = 2**31 - 1
    rejected = RejectedProducers()
    rejected.reject(batch(last), FULL)
    assert check(rejected, batch(0)) == FULL
    assert check(rejected, batch(last)) == ErrorCode.NONE
    assert check(rejected, batch(last - 1)) == ErrorCode.NONE


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_no_batch_overtakes_one_that_the_coordinator_did_not_admit(code: ErrorCode) -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), code, by_coordinator=True)
    assert check(rejected, batch(6)) == OUT_OF_ORDER
    rejected.ended(1)
    assert check(rejected, batch(6)) == ErrorCode.NONE


def test_a_new_producer_epoch_resets_the_state() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    assert check(rejected, batch(6, epoch=1)) == ErrorCode.NONE
    assert len(rejected) == 0


def test_in_a_new_leader_epoch_only_a_gap_is_rejected() -> None:
    """Another leader may have appended the rejected batch, so later batches may be valid."""
    rejected = RejectedProducers()
    rejected.reject(batch(5), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    rejected.begin_epoch()
    assert check(rejected, batch(9)) == ErrorCode.NONE
    gap = BrokerError(OUT_OF_ORDER, "6 after 4")
    codes = [rejected.client_error(batch(6), gap).code for _ in range(6)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 4 + [OUT_OF_ORDER] * 2


def test_in_a_new_leader_epoch_no_batch_of_an_unknown_producer_overtakes() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(0), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    rejected.begin_epoch()
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert check(rejected, batch(1), is_known=False) == code
    assert check(rejected, batch(0), is_known=False) == ErrorCode.NONE


def test_a_rejection_in_a_new_leader_epoch_counts() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    rejected.begin_epoch()
    rejected.reject(batch(8), ErrorCode.NOT_ENOUGH_REPLICAS)
    assert check(rejected, batch(9)) == ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("code", [OUT_OF_ORDER, ErrorCode.INVALID_RECORD])
def test_other_producers_and_other_errors_are_not_affected(code: ErrorCode) -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    error = BrokerError(code)
    assert rejected.client_error(batch(6, producer_id=2), error) is error
    assert (rejected.client_error(batch(6), error) is error) == (code != OUT_OF_ORDER)


def test_an_old_epoch_changes_nothing() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(0, epoch=1), FULL)
    rejected.reject(batch(7), FULL)
    assert check(rejected, batch(1, epoch=1)) == FULL


def test_a_batch_that_is_rejected_for_good_does_not_block_later_batches() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    rejected.reject(batch(5), ErrorCode.MESSAGE_TOO_LARGE)
    assert check(rejected, batch(6)) == ErrorCode.NONE


def test_other_producers_are_not_blocked() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(5), FULL)
    assert check(rejected, batch(6, producer_id=2)) == ErrorCode.NONE


def test_producers_without_an_id_are_not_tracked() -> None:
    rejected = RejectedProducers()
    rejected.reject(batch(-1, producer_id=-1), FULL)
    assert len(rejected) == 0


def test_the_number_of_tracked_producers_is_bounded() -> None:
    rejected = RejectedProducers()
    for producer_id in range(5000):
        rejected.reject(batch(5, producer_id), FULL)
    assert len(rejected) == 1000
    assert check(rejected, batch(6, 4999)) == FULL
    assert check(rejected, batch(6, 0)) == ErrorCode.NONE
