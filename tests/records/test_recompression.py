from __future__ import annotations

import struct

import pytest

from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import check_produced, read_header, stamp_crc
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.kernel import encode
from millstream.records.recompression import recompress
from millstream.records.record import Record, decode_records

_SIZE_MAX = 1 << 20


def _with_offsets(*offsets: int) -> bytearray:
    """Build a batch with a valid header whose records have these offset deltas."""
    batch = build_batch([_record(index) for index in range(len(offsets))])
    batch[61:] = encode([_record(offset) for offset in offsets], 0, 50)
    stamp_crc(batch, 0, len(batch))
    return batch


def _record(offset: int, timestamp: int = 50) -> Record:
    return Record(offset, timestamp, b"k", b"v", [("h", None)])


def _recompressed(batch: bytearray, size_max: int = _SIZE_MAX) -> bytearray:
    return recompress(batch, check_produced(batch), CompressionType.GZIP, size_max)


@pytest.mark.parametrize("codec", CompressionType)
def test_the_same_records_in_another_codec(codec: CompressionType) -> None:
    records = [_record(0, 70), _record(1, 90), _record(2, 80)]
    fields = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 9}
    batch = build_batch(records, codec=codec, is_transactional=True, **fields)
    rebuilt = _recompressed(batch)
    old, new = check_produced(batch), check_produced(rebuilt)
    assert new.codec == CompressionType.GZIP
    skipped = {"batch_length", "crc", "attributes"}
    for name in set(old._fields) - skipped:
        assert getattr(new, name) == getattr(old, name), name
    assert new.is_transactional
    assert decode_records(rebuilt, _SIZE_MAX) == records


@pytest.mark.parametrize("offsets", [(0, 2), (1, 0), (0, 0), (5, 6)])
def test_offsets_count_up_from_0(offsets: tuple[int, int]) -> None:
    rebuilt = _recompressed(_with_offsets(*offsets))
    assert decode_records(rebuilt, _SIZE_MAX) == [_record(0), _record(1)]
    assert read_header(rebuilt).last_offset_delta == 1


def test_records_that_cannot_be_recompressed_are_invalid() -> None:
    more = build_batch([_record(0)])
    struct.pack_into(">i", more, 57, 2)
    struct.pack_into(">i", more, 23, 1)
    fewer = build_batch([_record(0), _record(1)])
    struct.pack_into(">i", fewer, 57, 1)
    struct.pack_into(">i", fewer, 23, 0)
    broken = build_batch([_record(0)], codec=CompressionType.ZSTD)
    broken[70] ^= 0xFF
    far = build_batch([_record(0, 0), _record(1, 0)])
    far[61:] = encode([_record(0, 0), _record(1, (1 << 63) - 1)], 0, 0)
    struct.pack_into(">i", far, 8, len(far) - 12)
    for batch in (more, fewer, broken, far):
        stamp_crc(batch, 0, len(batch))
        with pytest.raises(BrokerError) as caught:
            _recompressed(batch)
        assert caught.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(BrokerError, match="INVALID_RECORD"):
        _recompressed(build_batch([_record(0)]), size_max=5)
