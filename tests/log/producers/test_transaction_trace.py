from __future__ import annotations

from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.producers.transaction_trace import TransactionTrace
from millstream.records.batch import BatchHeader, read_header, stamp
from millstream.records.builder import build_batch
from millstream.records.control import EndMarker, build_marker
from millstream.records.record import Record

COMMIT, ABORT = EndMarker(True, 0), EndMarker(False, 0)


def data(offset: int, producer_id: int = 1, *, is_transactional: bool = True) -> BatchHeader:
    record = Record(offset, 0, b"k", b"v", [])
    batch = build_batch(
        [record],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    return read_header(batch)


def control(offset: int, marker: EndMarker, producer_id: int = 1) -> BatchHeader:
    batch = build_marker(marker, producer_id, 0, 0)
    stamp(batch, 0, offset, 0)
    return read_header(batch)


def test_data_is_aborted_from_its_first_offset_to_its_marker() -> None:
    trace = TransactionTrace([AbortedTransaction(1, 2, 5, 6)])
    assert not trace.is_aborted(data(1))
    assert not trace.is_idle(control(1, COMMIT), COMMIT)
    assert trace.is_aborted(data(2))
    assert not trace.is_aborted(data(3, producer_id=2))
    assert not trace.is_aborted(data(3, producer_id=2, is_transactional=False))
    assert trace.is_aborted(data(4))
    assert not trace.is_idle(control(5, ABORT), ABORT)
    assert not trace.is_aborted(data(6))


def test_only_transactions_with_data_are_indexed() -> None:
    aborted = [AbortedTransaction(1, 0, 1, 2), AbortedTransaction(2, 2, 4, 5)]
    trace = TransactionTrace(aborted)
    assert trace.is_idle(control(1, ABORT), ABORT)
    assert trace.is_aborted(data(3, producer_id=2))
    assert not trace.is_idle(control(4, ABORT, 2), ABORT)
    assert trace.pop_kept() == aborted[1:]
    assert trace.pop_kept() == []


def test_a_commit_without_data_is_idle() -> None:
    trace = TransactionTrace([])
    assert trace.is_idle(control(0, COMMIT), COMMIT)
    assert not trace.is_aborted(data(1))
    assert not trace.is_idle(control(2, COMMIT), COMMIT)
    assert trace.is_idle(control(3, COMMIT), COMMIT)


def test_an_abort_without_its_marker_ends_where_the_marker_was() -> None:
    trace = TransactionTrace([AbortedTransaction(1, 0, 3, 4)])
    assert trace.is_aborted(data(1))
    assert not trace.is_aborted(data(4))
    assert not trace.is_idle(control(5, COMMIT), COMMIT)


def test_an_emptied_marker_is_idle_and_ends_nothing() -> None:
    trace = TransactionTrace([AbortedTransaction(1, 4, 6, 7)])
    assert trace.is_idle(control(2, COMMIT), None)
    assert trace.is_aborted(data(5))
    assert not trace.is_idle(control(6, ABORT), ABORT)
