"""Where unstable transactions begin."""

from __future__ import annotations

from millstream.log.producers.open_transactions import OpenTransactions


def test_without_transactions_the_high_watermark_is_stable() -> None:
    transactions = OpenTransactions()
    assert not transactions.has_unstable
    assert transactions.first_unstable_offset(7) == 7


def test_an_ended_transaction_is_unstable_until_its_marker_is_committed() -> None:
    transactions = OpenTransactions()
    transactions.begin(3, producer_id=1)
    assert transactions.end(3, marker_offset=5) == 6
    assert transactions.first_unstable_offset(5) == 3
    assert transactions.has_unstable
    assert transactions.first_unstable_offset(6) == 6
    assert not transactions.has_unstable


def test_the_end_of_a_transaction_tells_the_next_open_one() -> None:
    transactions = OpenTransactions()
    transactions.begin(3, producer_id=1)
    transactions.begin(4, producer_id=2)
    assert transactions.end(3, marker_offset=9) == 4
    assert transactions.first_unstable_offset(20) == 4


def test_restored_transactions_are_ordered_by_offset() -> None:
    transactions = OpenTransactions()
    transactions.restore({8: 1, 2: 5})
    assert transactions.first_unstable_offset(20) == 2
    transactions.end(2, marker_offset=20)
    assert transactions.first_unstable_offset(21) == 8


def test_a_truncation_keeps_the_transactions_that_ended_before_it() -> None:
    before = OpenTransactions()
    for start, marker in ((0, 2), (3, 5)):
        before.begin(start, producer_id=1)
        before.end(start, marker)
    after = OpenTransactions()
    after.keep_ended(before, 5)
    assert after.first_unstable_offset(2) == 0
    assert after.first_unstable_offset(3) == 3
