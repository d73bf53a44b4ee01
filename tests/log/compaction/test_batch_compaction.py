from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log.compaction.batch_compaction import (
    CompactionRules,
    Compactor,
    empty_batch,
    index_batch,
)
from millstream.log.compaction.offset_map import OffsetMap, slots_for
from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.producers.transaction_trace import TransactionTrace
from millstream.records.batch import BatchHeader, CorruptBatch, read_header, stamp, stamp_crc
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.control import EndMarker, build_marker, read_marker
from millstream.records.record import Record, decode_records

NOW_MS = 1_700_000_000_000
RETENTION_MS = 86_400_000
PAYLOAD_MAX = 1 << 24
NO_TRANSACTIONS = TransactionTrace(())

KeyValue = tuple[bytes | None, bytes | None]


def make_batch(pairs: Sequence[KeyValue], base_offset: int = 0, **fields: object) -> bytearray:
    records = [
        Record(base_offset + index, NOW_MS - 1000 + index * 7, key, value, [("h", b"x")])
        for index, (key, value) in enumerate(pairs)
    ]
    return build_batch(records, base_offset=base_offset, **fields)  # type: ignore[arg-type]


def make_rules(**changes: object) -> CompactionRules:
    values: dict[str, object] = {
        "now_ms": NOW_MS,
        "delete_retention_ms": RETENTION_MS,
        "round_end_offset": 1_000_000,
        "payload_bytes_max": PAYLOAD_MAX,
    }
    return CompactionRules(**(values | changes))  # type: ignore[arg-type]


def make_map(batches: Sequence[bytearray], rules: CompactionRules, start: int = 0) -> OffsetMap:
    known = OffsetMap(slots_for(1000, 1 << 20, 0.9))
    trace = TransactionTrace(rules.aborted)
    for batch in batches:
        assert index_batch(memoryview(batch), read_header(batch), known, start, rules, trace)
    return known


def make_compactor(known: OffsetMap, rules: CompactionRules) -> Compactor:
    return Compactor(known, rules, TransactionTrace(rules.aborted))


def compact_all(batches: Sequence[bytearray], rules: CompactionRules) -> list[bytes]:
    compactor = make_compactor(make_map(batches, rules), rules)
    results = (compactor.compact(memoryview(batch), read_header(batch)) for batch in batches)
    return [bytes(result) for result in results if result is not None]


def read_all(batches: Sequence[bytes]) -> list[Record]:
    return [record for batch in batches for record in decode_records(batch, PAYLOAD_MAX)]


def unchanged_fields(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset,
        header.leader_epoch,
        header.last_offset_delta,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


@pytest.mark.parametrize("codec", list(CompressionType))
def test_only_the_last_record_of_a_key_stays(codec: CompressionType) -> None:
    batches = [
        make_batch([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], 0, codec=codec),
        make_batch([(b"b", b"4"), (b"c", b"5")], 3, codec=codec),
    ]
    left = compact_all(batches, make_rules())
    assert [(one.offset, one.key, one.value) for one in read_all(left)] == [
        (2, b"a", b"3"),
        (3, b"b", b"4"),
        (4, b"c", b"5"),
    ]
    assert read_all(left)[0].timestamp == NOW_MS - 1000 + 14
    assert read_all(left)[0].headers == [("h", b"x")]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_a_rewritten_batch_keeps_its_offsets_sequences_and_codec(codec: CompressionType) -> None:
    first = make_batch(
        [(b"x", b"1"), (b"a", b"2"), (b"x", b"3")],
        10,
        codec=codec,
        leader_epoch=4,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
    )
    second = make_batch([(b"x", b"4")], 13)
    left = compact_all([first, second], make_rules())
    before, after = read_header(first), read_header(left[0])
    assert unchanged_fields(after) == unchanged_fields(before)
    assert after.codec == codec
    assert (after.count, after.last_offset, after.last_sequence) == (1, 12, 7)
    assert after.max_timestamp == NOW_MS - 1000 + 7


def test_a_batch_that_loses_nothing_is_returned_as_it_came() -> None:
    batch = memoryview(make_batch([(b"a", b"1"), (b"b", b"2")], codec=CompressionType.LZ4))
    rules = make_rules()
    compactor = make_compactor(make_map([bytearray(batch)], rules), rules)
    assert compactor.compact(batch, read_header(batch)) is batch


def test_an_empty_batch_is_dropped_unless_something_depends_on_it() -> None:
    batches = [
        make_batch([(b"a", b"1")], 0, producer_id=1, producer_epoch=0, base_sequence=0),
        make_batch([(b"a", b"2")], 1, producer_id=1, producer_epoch=0, base_sequence=1),
        make_batch([(b"a", b"3")], 2),
        make_batch([(b"a", b"4")], 3),
    ]
    left = compact_all(batches, make_rules(producer_last_offsets={1: 1}))
    assert [read_header(one).base_offset for one in left] == [1, 3]
    kept = read_header(left[0])
    assert (kept.count, kept.base_timestamp, kept.size) == (0, -1, 61)
    assert unchanged_fields(kept) == unchanged_fields(read_header(batches[1]))
    assert kept.max_timestamp == read_header(batches[1]).max_timestamp


def test_the_last_batch_of_a_cleaning_stays_as_an_empty_batch() -> None:
    batches = [make_batch([(None, b"1"), (None, b"2")], 0)]
    rules = make_rules(round_end_offset=2)
    left = compact_all(batches, rules)
    assert (read_header(left[0]).count, read_header(left[0]).next_offset) == (0, 2)
    assert compact_all([bytearray(left[0])], rules) == left
    assert compact_all([bytearray(left[0])], make_rules(round_end_offset=9)) == []


def test_records_without_a_key_are_dropped_and_counted() -> None:
    batch = make_batch([(None, b"1"), (b"a", b"2"), (b"", b"3")])
    rules = make_rules()
    compactor = make_compactor(make_map([batch], rules), rules)
    result = compactor.compact(memoryview(batch), read_header(batch))
    assert result is not None
    assert [record.key for record in read_all([bytes(result)])] == [b"a", b""]
    assert compactor.counts.keyless == 1


@pytest.mark.parametrize("codec", list(CompressionType))
def test_a_tombstone_gets_a_delete_horizon_and_is_removed_after_it(codec: CompressionType) -> None:
    batches = [make_batch([(b"a", b"1"), (b"a", None), (b"b", b"2")], 0, codec=codec)]
    first = compact_all(batches, make_rules())
    header = read_header(first[0])
    assert header.delete_horizon_ms == NOW_MS + RETENTION_MS
    assert [(one.offset, one.value) for one in read_all(first)] == [(1, None), (2, b"2")]
    times = [record.timestamp for record in read_all(first)]
    assert times == [NOW_MS - 1000 + 7, NOW_MS - 1000 + 14]
    assert header.max_timestamp == times[-1]

    early = make_rules(now_ms=NOW_MS + RETENTION_MS - 1)
    assert compact_all([bytearray(one) for one in first], early) == first
    late = make_rules(now_ms=NOW_MS + RETENTION_MS)
    last = compact_all([bytearray(one) for one in first], late)
    assert [(one.offset, one.value) for one in read_all(last)] == [(2, b"2")]
    assert [record.timestamp for record in read_all(last)] == times[1:]
    assert read_header(last[0]).delete_horizon_ms == NOW_MS + RETENTION_MS


def test_an_endless_delete_retention_does_not_overflow() -> None:
    batches = [make_batch([(b"a", None)])]
    left = compact_all(batches, make_rules(delete_retention_ms=2**63 - 1))
    assert (read_header(left[0]).delete_horizon_ms or 0) > 2**61
    assert read_all(left)[0].timestamp == NOW_MS - 1000


def test_append_time_survives_a_rewrite() -> None:
    batch = make_batch([(b"a", b"1"), (b"b", b"2"), (b"a", None)])
    batch[22] |= 0x08
    stamp_crc(batch, 0, len(batch))
    left = compact_all([batch], make_rules())
    after = read_header(left[0])
    assert after.is_append_time
    assert after.max_timestamp == read_header(batch).max_timestamp
    assert [one.timestamp for one in read_all(left)] == [after.max_timestamp] * 2


def transactional(
    pairs: Sequence[KeyValue], base_offset: int, producer_id: int = 3, sequence: int = 0
) -> bytearray:
    return make_batch(
        pairs,
        base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def make_marker(offset: int, *, commit: bool, producer_id: int = 3) -> bytearray:
    marker = build_marker(EndMarker(commit, 7), producer_id, 0, NOW_MS)
    stamp(marker, 0, offset, -1)
    return marker


def test_a_marker_is_unchanged_while_the_log_has_data_of_its_transaction() -> None:
    batches = [transactional([(b"a", b"1")], 0), make_marker(1, commit=True)]
    left = compact_all(batches, make_rules())
    assert left == [bytes(one) for one in batches]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_without_data_gets_a_delete_horizon_and_is_removed_after_it(commit: bool) -> None:
    batches = [make_marker(1, commit=commit), make_batch([(b"a", b"1")], 2)]
    marker, data = compact_all(batches, make_rules())
    header = read_header(marker)
    assert (header.is_control, header.is_transactional, header.count) == (True, True, 1)
    assert header.delete_horizon_ms == NOW_MS + RETENTION_MS
    assert read_marker(marker, header) == EndMarker(commit, 7)
    assert unchanged_fields(header) == unchanged_fields(read_header(batches[0]))
    assert read_all([marker])[0].timestamp == NOW_MS

    once_more = [bytearray(marker), bytearray(data)]
    early = make_rules(now_ms=NOW_MS + RETENTION_MS - 1)
    assert compact_all(once_more, early) == [marker, data]
    late = make_rules(now_ms=NOW_MS + RETENTION_MS)
    assert compact_all(once_more, late) == [data]


def test_the_last_marker_of_a_producer_without_data_stays_empty_for_its_epoch() -> None:
    batches = [make_marker(1, commit=True), make_batch([(b"a", b"1")], 2)]
    first = [bytearray(one) for one in compact_all(batches, make_rules())]
    late = make_rules(now_ms=NOW_MS + RETENTION_MS, producer_last_epochs={3: 0})
    emptied, data = compact_all(first, late)
    header = read_header(emptied)
    assert (header.count, header.is_control, header.producer_epoch) == (0, True, 0)
    assert compact_all([bytearray(emptied), bytearray(data)], late) == [emptied, data]
    gone = make_rules(now_ms=NOW_MS + RETENTION_MS)
    assert compact_all([bytearray(emptied), bytearray(data)], gone) == [data]


def test_control_records_of_another_kind_are_not_touched() -> None:
    other = make_batch(
        [(b"\0\0\0\2", b"leader")], 0, producer_id=-1, is_transactional=False, is_control=True
    )
    later = make_batch([(b"\0\0\0\2", b"data")], 1)
    much_later = make_rules(now_ms=NOW_MS + 10 * RETENTION_MS)
    assert compact_all([other, later], much_later) == [bytes(other), bytes(later)]


def test_aborted_records_go_and_do_not_hide_committed_ones() -> None:
    batches = [
        make_batch([(b"a", b"good")], 0),
        transactional([(b"a", b"bad")], 1),
        make_marker(2, commit=False),
        transactional([(b"b", b"good")], 3, sequence=1),
        make_marker(4, commit=True),
    ]
    rules = make_rules(aborted=(AbortedTransaction(3, 1, 2, 3),))
    left = compact_all(batches, rules)
    # The abort marker stays: earlier readers may have seen the aborted records.
    assert left == [bytes(batches[number]) for number in (0, 2, 3, 4)]
    again = [bytearray(one) for one in left]
    marker = compact_all(again, make_rules())[1]
    assert read_header(marker).delete_horizon_ms == NOW_MS + RETENTION_MS


def test_an_aborted_batch_beyond_the_end_of_the_map_is_removed() -> None:
    batches = [transactional([(b"a", b"bad")], 0), transactional([(b"a", b"ok")], 1, producer_id=4)]
    rules = make_rules(aborted=(AbortedTransaction(3, 0, 2, 1),))
    compactor = make_compactor(OffsetMap(3, 0.9), rules)
    left = [compactor.compact(memoryview(one), read_header(one)) for one in batches]
    assert left[0] is None
    assert bytes(left[1] or b"") == bytes(batches[1])


def test_transactions_of_different_producers_are_distinguished() -> None:
    batches = [
        transactional([(b"a", b"1")], 0, producer_id=3),
        transactional([(b"b", b"2")], 1, producer_id=4),
        transactional([(b"c", b"3")], 2, producer_id=3, sequence=1),
        make_marker(3, commit=False, producer_id=4),
        make_marker(4, commit=True, producer_id=3),
    ]
    left = compact_all(batches, make_rules(aborted=(AbortedTransaction(4, 1, 3, 0),)))
    assert left == [bytes(batches[number]) for number in (0, 2, 3, 4)]


def test_indexing_stops_at_a_full_map_and_the_rest_is_unchanged() -> None:
    batches = [
        make_batch([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"a", b"5")], 0),
        make_batch([(b"a", b"6"), (None, b"7")], 5),
    ]
    rules = make_rules()
    known = OffsetMap(3, 0.9)
    assert not index_batch(
        memoryview(batches[0]), read_header(batches[0]), known, 0, rules, NO_TRANSACTIONS
    )
    assert known.end_offset == 3
    compactor = make_compactor(known, rules)
    left = [compactor.compact(memoryview(one), read_header(one)) for one in batches]
    assert [record.offset for record in decode_records(bytes(left[0] or b""), PAYLOAD_MAX)] == [
        1,
        2,
        3,
        4,
    ]
    assert bytes(left[1] or b"") == bytes(batches[1])


def test_offsets_before_the_dirty_start_are_not_indexed() -> None:
    batch = make_batch([(b"a", b"1"), (b"b", b"2")], 10)
    known = make_map([batch], make_rules(), start=11)
    assert (known.get(b"a"), known.get(b"b"), known.end_offset) == (-1, 11, 12)


def test_damage_is_rejected_before_anything_is_rewritten() -> None:
    batch = make_batch([(b"a", b"1"), (b"a", b"2")])
    rules = make_rules()
    known = make_map([batch], rules)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        index_batch(memoryview(batch), read_header(batch), known, 0, rules, NO_TRANSACTIONS)
    with pytest.raises(CorruptBatch):
        make_compactor(known, rules).compact(memoryview(batch), read_header(batch))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_hostile_records_with_a_good_checksum_raise_only_corrupt_batch(data: st.DataObject) -> None:
    codec = data.draw(
        st.sampled_from([CompressionType.NONE, CompressionType.NONE, CompressionType.ZSTD])
    )
    batch = make_batch([(b"a", b"1"), (b"bb", None), (None, b"3" * 70)], 5, codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(57, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    stamp_crc(batch, 0, len(batch))
    rules = make_rules()
    known = OffsetMap(100)
    try:
        index_batch(memoryview(batch), read_header(batch), known, 0, rules, NO_TRANSACTIONS)
        make_compactor(known, rules).compact(memoryview(batch), read_header(batch))
    except CorruptBatch:
        return


def test_an_unknown_codec_is_damage() -> None:
    batch = make_batch([(b"a", b"1")])
    batch[22] |= 7
    stamp_crc(batch, 0, len(batch))
    with pytest.raises(CorruptBatch, match="codec"):
        make_map([batch], make_rules())


def test_an_empty_batch_holds_no_records_but_its_offsets() -> None:
    header = read_header(empty_batch(read_header(make_batch([(b"a", b"1")] * 4, 6))))
    assert (header.base_offset, header.next_offset, header.count) == (6, 10, 0)
