from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.records.batch import read_header, scan
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record, decode_records

_both = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

_optional = st.one_of(st.none(), st.binary(max_size=40))
_records = st.lists(
    st.tuples(
        st.integers(0, 1 << 20),
        st.integers(-1, 1 << 50),
        _optional,
        _optional,
        st.lists(st.tuples(st.text(max_size=5), _optional), max_size=3),
    ),
    max_size=8,
    unique_by=lambda fields: fields[0],
).map(lambda rows: [Record(*row) for row in sorted(rows, key=lambda row: row[0])])


@_both
@given(records=_records, base=st.integers(0, 1 << 60), codec=st.sampled_from(list(CompressionType)))
def test_offsets_with_gaps_and_timestamps_in_any_order_survive(
    kernel: ModuleType, records: list[Record], base: int, codec: CompressionType
) -> None:
    records = [record._replace(offset=base + record.offset) for record in records]
    batch = build_batch(records, base_offset=base, codec=codec, last_offset_delta=1 << 20)
    ((_, header),) = scan(batch)
    assert (header.base_offset, header.last_offset) == (base, base + (1 << 20))
    assert header.max_timestamp == max((record.timestamp for record in records), default=-1)
    assert decode_records(batch, 1 << 20) == records


def test_defaults_are_those_of_a_plain_produced_batch(kernel: ModuleType) -> None:
    header = read_header(build_batch([Record(0, 9, b"k", b"v", []), Record(1, 8, b"k", b"v", [])]))
    assert header[:4] == (0, header.size - 12, -1, 2)
    assert header[5:] == (0, 1, 9, 9, -1, -1, -1, 2)


def test_delete_horizon_keeps_timestamps(kernel: ModuleType) -> None:
    records = [Record(4, 1000, b"k", None, []), Record(7, 900, b"j", None, [])]
    batch = build_batch(records, base_offset=3, delete_horizon_ms=55_000)
    header = read_header(batch)
    assert header.delete_horizon_ms == 55_000
    assert (header.max_timestamp, header.last_offset) == (1000, 7)
    assert decode_records(batch, 1000) == records


def test_append_time_and_flags(kernel: ModuleType) -> None:
    batch = build_batch(
        [Record(0, 5, b"k", b"v", [])],
        append_time_ms=70,
        is_transactional=True,
        is_control=True,
        codec=CompressionType.SNAPPY,
    )
    header = read_header(batch)
    assert header.is_append_time
    assert header.is_transactional
    assert header.is_control
    assert header.codec == CompressionType.SNAPPY
    assert decode_records(batch, 1000)[0].timestamp == 70


@pytest.mark.parametrize(
    ("offsets", "last_offset_delta"),
    [([4], None), ([6, 6], None), ([7, 6], None), ([5, 9], 3), ([5 + (1 << 31)], None), ([], -1)],
)
def test_offsets_that_do_not_fit(offsets: list[int], last_offset_delta: int | None) -> None:
    records = [Record(offset, 0, None, None, []) for offset in offsets]
    with pytest.raises(ValueError, match="offset"):
        build_batch(records, base_offset=5, last_offset_delta=last_offset_delta)


def test_timestamps_that_do_not_fit() -> None:
    records = [Record(0, -(1 << 62), None, None, []), Record(1, 1 << 62, None, None, [])]
    with pytest.raises(ValueError, match="timestamps"):
        build_batch(records)
