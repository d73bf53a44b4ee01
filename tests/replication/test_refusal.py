"""Batches behind one that was turned away."""

from __future__ import annotations

import pytest

from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.refusal import Refusals

OUT_OF_ORDER = BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence 7 after 5")
FULL = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_batches_behind_it_are_told_the_same(code: ErrorCode) -> None:
    refusals = Refusals()
    assert refusals.told(1, BrokerError(code)).code == code
    assert [refusals.told(1, OUT_OF_ORDER).code for _ in range(4)] == [code] * 4


def test_a_gap_that_stays_is_told_as_one() -> None:
    refusals = Refusals()
    refusals.told(1, FULL)
    codes = [refusals.told(1, OUT_OF_ORDER).code for _ in range(6)]
    assert codes[4:] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2


def test_each_attempt_of_the_first_begins_anew() -> None:
    refusals = Refusals()
    for _ in range(3):
        refusals.told(1, FULL)
        codes = [refusals.told(1, OUT_OF_ORDER).code for _ in range(4)]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 4


def test_once_the_first_was_appended_a_gap_is_a_gap() -> None:
    refusals = Refusals()
    refusals.told(1, FULL)
    refusals.appended(1)
    assert refusals.told(1, OUT_OF_ORDER) is OUT_OF_ORDER
    assert len(refusals) == 0


def test_others_and_other_errors_are_told_the_truth() -> None:
    refusals = Refusals()
    refusals.told(1, FULL)
    assert refusals.told(2, OUT_OF_ORDER) is OUT_OF_ORDER
    fenced = BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert refusals.told(1, fenced) is fenced
    assert refusals.told(1, OUT_OF_ORDER) is OUT_OF_ORDER


def test_producers_without_an_id_have_no_sequence() -> None:
    refusals = Refusals()
    assert refusals.told(-1, FULL) is FULL
    assert len(refusals) == 0


def test_what_is_remembered_is_bounded() -> None:
    refusals = Refusals()
    for producer_id in range(5000):
        refusals.told(producer_id, FULL)
    assert len(refusals) == 1000
    assert refusals.told(4999, OUT_OF_ORDER).code == ErrorCode.KAFKA_STORAGE_ERROR
    assert refusals.told(0, OUT_OF_ORDER) is OUT_OF_ORDER
