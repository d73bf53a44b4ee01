"""Record batches that a broker should reject, store without decoding, or survive."""

from __future__ import annotations

import random
import struct

from millstream.records.batch import HEADER_BYTES, stamp_crc
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType, compress
from millstream.records.record import Record

_BOMB_BYTES = 48 << 20
_INTS = (0, 1, -1, 2, 127, -128, 255, 2**15 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
#: The header's fields after the CRC: position and struct format.
_FIELDS = {
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}


class BatchSource:
    """Creates random batches of many kinds; `chance` alone decides."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._bombs = [
            _bomb(codec) for codec in CompressionType if codec is not CompressionType.NONE
        ]
        self._kinds = (
            (6, self.sound),
            (3, self.sequenced),
            (2, self._damaged),
            (4, self._odd_header),
            (2, self._cut),
            (1, self._doubled),
            (3, self._garbage_records),
            (1, self._lying_length),
            (1, self._lying_count),
            (0.3, self._exploding),
            (0.5, self._noise),
        )

    def next(self) -> bytes:
        weights = [weight for weight, _ in self._kinds]
        ((_, make),) = self._chance.choices(self._kinds, weights)
        return bytes(make())

    def sound(self, **fields: int) -> bytearray:
        chance = self._chance
        count = chance.randint(1, 4)
        time_ms = chance.choice((-1, 0, 1_700_000_000_000, 2**62))
        records = [
            Record(
                n,
                time_ms,
                chance.choice((None, b"", b"key-%d" % chance.randrange(20))),
                chance.choice((None, b"", chance.randbytes(chance.randrange(200)))),
                [("header", None), ("", b"x")] if chance.random() < 0.2 else [],
            )
            for n in range(count)
        ]
        return build_batch(records, codec=chance.choice(list(CompressionType)), **fields)

    def sequenced(self) -> bytearray:
        chance = self._chance
        return self.sound(
            producer_id=chance.randrange(6),
            producer_epoch=chance.choice((0, 0, 0, 1, 2, 32767)),
            base_sequence=chance.choice((0, 1, 2, 3, 4, 2**31 - 1, chance.randrange(50))),
        )

    def _damaged(self) -> bytearray:
        batch = self.sound()
        batch[self._chance.randrange(len(batch))] ^= 1 << self._chance.randrange(8)
        return batch

    def _odd_header(self) -> bytearray:
        batch = self.sound()
        for _ in range(self._chance.randint(1, 3)):
            position, letter = _FIELDS[self._chance.choice(list(_FIELDS))]
            _put(batch, position, letter, self._chance.choice(_INTS))
        if self._chance.random() < 0.2:
            _put(batch, 0, ">q", self._chance.choice(_INTS))
        if self._chance.random() < 0.2:
            batch[16] = self._chance.choice((0, 1, 3, 127, 255))
        stamp_crc(batch, 0, len(batch))
        return batch

    def _cut(self) -> bytearray:
        batch = self.sound()
        return batch[: self._chance.randrange(len(batch))]

    def _doubled(self) -> bytearray:
        return self.sound() + self.sound()

    def _garbage_records(self) -> bytearray:
        """Return a batch with noise in place of records, and a matching CRC."""
        chance = self._chance
        batch = self.sound()[:HEADER_BYTES] + chance.randbytes(chance.randrange(300))
        batch[21:23] = chance.randrange(5).to_bytes(2)
        return _sealed(batch)

    def _lying_length(self) -> bytearray:
        batch = self.sound()
        _put(batch, 8, ">i", self._chance.choice((*_INTS, len(batch) + 1, len(batch) - 13, 49)))
        return batch

    def _lying_count(self) -> bytearray:
        """Return a batch of few records whose header consistently claims very many."""
        batch = self.sound()
        count = self._chance.choice((5, 1000, 2**30, 2**31 - 1))
        _put(batch, 57, ">i", count)
        _put(batch, 23, ">i", count - 1)
        return _sealed(batch)

    def _exploding(self) -> bytearray:
        return bytearray(self._chance.choice(self._bombs))

    def _noise(self) -> bytearray:
        return bytearray(self._chance.randbytes(self._chance.randrange(200)))


def _put(batch: bytearray, position: int, letter: str, value: int) -> None:
    bits = 8 * struct.calcsize(letter)
    value = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    struct.pack_into(letter, batch, position, value)


def _sealed(batch: bytearray) -> bytearray:
    """Set length and CRC to match the batch's content."""
    _put(batch, 8, ">i", len(batch) - 12)
    stamp_crc(batch, 0, len(batch))
    return batch


def _bomb(codec: CompressionType) -> bytearray:
    """Return a small batch that decompresses to very many bytes."""
    header = build_batch([Record(0, 0, b"k", b"v", [])])[:HEADER_BYTES]
    header[21:23] = codec.to_bytes(2)
    return _sealed(header + compress(codec, bytes(_BOMB_BYTES)))
