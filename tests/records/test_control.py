from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.records.batch import CorruptBatch, read_header, scan, stamp
from millstream.records.builder import build_batch
from millstream.records.control import EndMarker, build_marker, read_marker
from millstream.records.crc import crc32c
from millstream.records.record import Record

TIME_MS = 1_700_000_000_000

epochs = st.integers(0, 2**15 - 1)


@given(
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    epochs,
    st.integers(0, 2**62),
)
def test_a_marker_is_read_as_it_was_written(
    is_commit: bool, coordinator_epoch: int, producer_id: int, epoch: int, offset: int
) -> None:
    marker = EndMarker(is_commit, coordinator_epoch)
    batch = build_marker(marker, producer_id, epoch, TIME_MS)
    stamp(batch, 0, offset, 5)
    ((_, header),) = scan(batch)
    assert read_marker(batch, header) == marker
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        producer_id,
        epoch,
        -1,
    )
    assert (header.is_control, header.is_transactional, header.count) == (True, True, 1)
    assert (header.base_timestamp, header.max_timestamp) == (TIME_MS, TIME_MS)


@pytest.mark.parametrize(("is_commit", "kind"), [(False, 0), (True, 1)])
def test_the_bytes_are_those_of_the_format(is_commit: bool, kind: int) -> None:
    # Lengths as zigzag varints: 16 bytes of record, a key of 4, a value of 6, no headers.
    record = bytes([32, 0, 0, 0, 8, 0, 0, 0, kind, 12, 0, 0, 0, 0, 0, 9, 0])
    checked = struct.pack(">hiqqqhii", 0x30, 0, TIME_MS, TIME_MS, 77, 3, -1, 1) + record
    head = struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked))
    assert build_marker(EndMarker(is_commit, 9), 77, 3, TIME_MS) == head + checked


def control(key: bytes | None, value: bytes | None) -> bytearray:
    record = Record(0, TIME_MS, key, value, [])
    return build_batch([record], producer_id=1, producer_epoch=0, is_control=True)


def test_the_known_fields_of_newer_versions_are_read() -> None:
    batch = control(struct.pack(">hh", 1, 1) + b"more", struct.pack(">hi", 1, 4) + b"more")
    assert read_marker(batch, read_header(batch)) == EndMarker(True, 4)


def test_other_control_records_and_emptied_ones_are_no_markers() -> None:
    other = control(struct.pack(">hh", 0, 2), b"")
    assert read_marker(other, read_header(other)) is None
    emptied = build_batch([], producer_id=1, producer_epoch=0, is_control=True)
    assert read_marker(emptied, read_header(emptied)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0" * 6),
        (b"\0\0\0", b"\0" * 6),
        (b"\xff\xff\0\0", b"\0" * 6),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0" * 5),
        (b"\0\0\0\1", b"\xff" * 6),
    ],
)
def test_damage_raises_corrupt_batch(key: bytes | None, value: bytes | None) -> None:
    batch = control(key, value)
    with pytest.raises(CorruptBatch):
        read_marker(batch, read_header(batch))


@given(st.binary(max_size=40))
def test_hostile_bytes_raise_only_corrupt_batch(tail: bytes) -> None:
    batch = build_marker(EndMarker(True, 1), 1, 0, TIME_MS)
    batch[61:] = tail
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    try:
        read_marker(batch, read_header(batch))
    except CorruptBatch:
        return
