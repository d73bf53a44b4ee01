"""What a log knows of transactions: what is undecided, and what was aborted.

Extends `LocalLog` with the questions that readers and coordinators ask, and with what a control
batch changes. The state of producers is `producer_state`'s, aborted transactions are listed in the
segments' transaction indexes; `PartitionLog` appends.

A log in which no transaction is open answers in a few instructions: nobody pays who has none.
"""

from __future__ import annotations

from bisect import bisect_right

from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.local_log import LocalLog
from millstream.log.producers import producer_replay
from millstream.log.segment import Segment
from millstream.records.batch import CONTROL_FLAG, BatchHeader, read_header
from millstream.records.control import EndMarker, build_marker, read_marker
from millstream.records.crc import Buffer


class TransactionalLog(LocalLog):
    __slots__ = ()

    def last_stable_offset(self, high_watermark: int) -> int:
        """The first offset that a reader of committed records may not see yet.

        Everything below is decided, by markers below the high watermark. Those below the largest
        one that was ever given are forgotten.
        """
        producers = self._producers
        if producers is None:
            producers = self.producer_state
        if not producers.has_unstable:
            return high_watermark
        first = producers.first_unstable_offset(high_watermark)
        # The beginning of an open transaction may have been deleted.
        return max(first, min(self.log_start_offset, high_watermark))

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has begun a transaction here, in that epoch, that has not ended."""
        return self.producer_state.has_open(producer_id, producer_epoch)

    def has_marker_since(self, producer_id: int, offset: int) -> bool:
        """Whether a transaction of the producer was ended here at `offset` or after it.

        Of markers that were written while this process had the log open; older ones are not known.
        """
        return self.producer_state.has_marker_since(producer_id, offset)

    def is_producer_known(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the log has something of the producer in that epoch."""
        entry = self.producer_state.entries.get(producer_id)
        return entry is not None and entry.epoch == producer_epoch

    def is_past(self, header: BatchHeader) -> bool:
        """Whether a batch is an old one: appended, or of an earlier epoch. False while the state of
        producers is not loaded."""
        return self._producers is not None and self._producers.is_past(header)

    def check_first_batch(self, header: BatchHeader) -> None:
        """Refuse a batch that can't be the first of its transaction here.

        For transactions of version 2, before the coordinator is asked about them. Raises
        INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        self.producer_state.check_first(header, self.log_end_offset)

    def prepare_marker(
        self, marker: EndMarker, producer_id: int, producer_epoch: int, transaction_version: int
    ) -> bytearray | None:
        """The batch to append in order to end the producer's transaction; None if that was done.

        Raises INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        now_ms = self._storage.clock.wall_ms()
        batch = build_marker(marker, producer_id, producer_epoch, now_ms)
        is_due = self.producer_state.check_marker(read_header(batch), marker, transaction_version)
        return batch if is_due else None

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Those with records in [from_offset, upper_offset), which must be stable.

        Raises KAFKA_STORAGE_ERROR, or CORRUPT_MESSAGE where a damaged index can't be replaced.
        """
        segments = self.segments
        found: list[AbortedTransaction] = []
        first = max(bisect_right(segments, from_offset, key=_base_offset) - 1, 0)
        try:
            for number in range(first, len(segments)):
                segment = segments[number]
                if not segment.transaction_index_checked:
                    self._check_index(number)
                index = segment.transaction_index
                if len(index) and not index.overlapping(from_offset, upper_offset, found):
                    break
        except OSError as error:
            raise self.read_failed(error) from error
        return found

    def _check_index(self, number: int) -> None:
        """Before its first use: where the file can't be true, make it anew from the log."""
        segments, segment = self.segments, self.segments[number]
        if not segment.transaction_index.is_sane():
            is_last = number == len(segments) - 1
            end = self.log_end_offset if is_last else segments[number + 1].base_offset
            producer_replay.rebuild_transaction_index(
                self._storage.disk, self.directory, segments, self._snapshots, number, end
            )
        segment.transaction_index_checked = True

    def _note_producer(
        self, segment: Segment, batch: Buffer, header: BatchHeader, offset: int, timestamp_ms: int
    ) -> None:
        """Take in a batch with a producer id that was appended to `segment`, at `offset`."""
        producers = self._producers
        if producers is None:
            producers = self.producer_state
        if not header.attributes & CONTROL_FLAG:
            producers.append(header, offset, timestamp_ms)
            return
        aborted = producers.end(header, offset, timestamp_ms, read_marker(batch, header))
        if aborted is not None:
            segment.transaction_index.append(aborted)
            # It may be the first, and then the next flush makes the file.
            self._is_name_unsynced = True


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
