"""A simple model of a log with transactions.

`TransactionModel` keeps the batches in a list and computes each result from the whole list, so no
result depends on an earlier one. `Driver` applies the same steps to a real log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from itertools import pairwise

from harness.in_process.log_home import NOW_MS, LogHome
from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.log import PartitionLog
from millstream.records.batch import read_header
from millstream.records.builder import build_batch
from millstream.records.control import EndMarker
from millstream.records.record import Record


@dataclass(frozen=True)
class Batch:
    """One batch: data, or a marker."""

    offset: int
    count: int
    producer_id: int
    epoch: int
    sequence: int = -1
    is_transactional: bool = False
    marker: EndMarker | None = None

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


@dataclass
class Producer:
    epoch: int
    last_sequence: int = -1
    coordinator_epoch: int = -1
    start: int = -1


@dataclass
class Picture:
    """The state that follows from a list of batches."""

    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    #: First offset and marker offset of every ended transaction.
    ended: list[tuple[int, int]] = field(default_factory=list)

    @property
    def open_starts(self) -> list[int]:
        return sorted(one.start for one in self.producers.values() if one.start >= 0)


class TransactionModel:
    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.end = 0

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.end = batch.next_offset

    def cut(self, offset: int) -> None:
        self.batches = [one for one in self.batches if one.next_offset <= offset]
        self.end = self.batches[-1].next_offset if self.batches else 0

    def picture(self) -> Picture:
        picture = Picture()
        for batch in self.batches:
            if batch.producer_id < 0:
                continue
            producer = picture.producers.get(batch.producer_id)
            if producer is None or producer.epoch != batch.epoch:
                producer = replace(
                    producer or Producer(batch.epoch), epoch=batch.epoch, last_sequence=-1
                )
                picture.producers[batch.producer_id] = producer
            if batch.marker is None:
                producer.last_sequence = batch.sequence + batch.count - 1
                if batch.is_transactional and producer.start < 0:
                    producer.start = batch.offset
                continue
            producer.coordinator_epoch = batch.marker.coordinator_epoch
            start, producer.start = producer.start, -1
            if start < 0:
                continue
            picture.ended.append((start, batch.offset))
            if not batch.marker.is_commit:
                stable = min([*picture.open_starts, batch.offset + 1])
                picture.aborted.append(
                    AbortedTransaction(batch.producer_id, start, batch.offset, stable)
                )
        return picture

    def last_stable_offset(self, high_watermark: int) -> int:
        picture = self.picture()
        unstable = [start for start, marker in picture.ended if marker >= high_watermark]
        return min([high_watermark, *unstable, *picture.open_starts])


class Driver:
    """Applies the same steps to a log and its model. `check` compares them."""

    def __init__(self, home: LogHome) -> None:
        self.home = home
        self.log: PartitionLog = home.open()
        self.model = TransactionModel()
        self.high_watermark = 0

    def produce(self, producer_id: int, count: int, *, is_transactional: bool) -> None:
        producer = self.model.picture().producers.get(producer_id, Producer(0))
        is_transactional = is_transactional or producer.start >= 0
        sequence = producer.last_sequence + 1
        batch = build_batch(
            [Record(number, NOW_MS, b"key", b"v" * 40, []) for number in range(count)],
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        offset = self.append(batch)
        self.model.add(
            Batch(offset, count, producer_id, producer.epoch, sequence, is_transactional)
        )

    def produce_plain(self, count: int) -> None:
        records = [Record(number, NOW_MS, b"key", b"v" * 40, []) for number in range(count)]
        self.model.add(Batch(self.append(build_batch(records)), count, -1, -1))

    def end(self, producer_id: int, *, is_commit: bool, is_bumped: bool) -> None:
        producer = self.model.picture().producers.get(producer_id, Producer(0))
        epoch = producer.epoch + is_bumped
        coordinator_epoch = max(producer.coordinator_epoch, 0) + len(self.model.batches) % 2
        marker = EndMarker(is_commit, coordinator_epoch)
        version = 2 if is_bumped else 1
        batch = self.log.prepare_marker(marker, producer_id, epoch, version)
        assert batch is not None
        self.model.add(Batch(self.append(batch), 1, producer_id, epoch, marker=marker))

    def append(self, batch: bytearray) -> int:
        view = memoryview(batch)
        return self.log.append_as_leader(view, read_header(view), 0).base_offset

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self.model.cut(offset)
        self.high_watermark = min(self.high_watermark, self.model.end)

    def stop_cleanly(self) -> None:
        self.log = self.home.reopen(clean=True)
        self.high_watermark = self.model.end

    def kill(self, offset: int, torn_bytes: int) -> None:
        """Stop as if killed, and lose all of the log from `offset` on but `torn_bytes`.

        `torn_bytes` are fewer than any batch has. Nothing below the recovery point is lost. Indexes
        may have entries beyond the end of the log.
        """
        offset = max(offset, self.log.recovery_point)
        kept = [one for one in self.model.batches if one.next_offset <= offset]
        offset = kept[-1].next_offset if kept else 0
        segments = [(one.base_offset, one.log.path) for one in self.log.segments]
        self.home.stop(clean=False)
        for base, path in segments:
            if base >= offset > 0:
                path.unlink()
                continue
            data, position = path.read_bytes(), 0
            while position < len(data) and read_header(data, position).base_offset < offset:
                position += read_header(data, position).size
            path.write_bytes(data[: position + torn_bytes])
        self.log = self.home.open()
        self.model.cut(offset)
        self.high_watermark = self.model.end

    def check(self) -> None:
        log, model = self.log, self.model
        picture = model.picture()
        assert log.log_end_offset == model.end
        self.check_producers(picture)
        stable = model.last_stable_offset(self.high_watermark)
        assert log.last_stable_offset(self.high_watermark) == stable
        for first in range(0, stable, 3):
            for upper in range(first + 1, stable + 1, 4):
                expected = [
                    one
                    for one in picture.aborted
                    if one.last_offset >= first and one.first_offset < upper
                ]
                assert log.aborted_transactions(first, upper) == expected

    def check_producers(self, picture: Picture) -> None:
        actual = {
            one.producer_id: Producer(
                one.epoch, one.last_sequence, one.coordinator_epoch, one.transaction_start
            )
            for one in self.log.producer_state.entries.values()
        }
        assert actual == picture.producers
        for producer_id, producer in picture.producers.items():
            is_open = self.log.producer_state.has_open_transaction(producer_id, producer.epoch)
            assert is_open == (producer.start >= 0)
            assert not self.log.producer_state.has_open_transaction(producer_id, producer.epoch + 1)

    def check_files(self) -> None:
        """Return the files after a flush, byte for byte."""
        self.log.flush()
        aborted = self.model.picture().aborted
        bases = [segment.base_offset for segment in self.log.segments]
        for base, following in pairwise([*bases, self.model.end + 1]):
            path = self.home.log_path / f"{base:020d}.txnindex"
            expected = b"".join(
                struct.pack(">hqqqq", 0, *one)
                for one in aborted
                if base <= one.last_offset < following
            )
            assert (path.read_bytes() if path.exists() else b"") == expected
