"""Reads a log as a consumer with `isolation.level=read_committed` does."""

from __future__ import annotations

from millstream.log.log import PartitionLog
from millstream.records.batch import scan
from millstream.records.control import read_marker
from millstream.records.record import Record, decode_records


def read_committed(log: PartitionLog, high_watermark: int | None = None) -> list[Record]:
    """Return the committed and the non-transactional records in order."""
    watermark = log.log_end_offset if high_watermark is None else high_watermark
    end, offset = log.last_stable_offset(watermark), log.log_start_offset
    records: list[Record] = []
    while offset < end:
        data = log.read(offset, 300, end, at_least_one=True).read()
        batches = scan(data)
        if not batches:
            break
        upper = batches[-1][1].next_offset
        aborted = sorted(log.aborted_transactions(offset, upper), key=lambda one: one.first_offset)
        ignored: set[int] = set()
        for position, header in batches:
            while aborted and aborted[0].first_offset <= header.last_offset:
                ignored.add(aborted.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(data, header, position)
                if marker is not None and not marker.is_commit:
                    ignored.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in ignored):
                records += [
                    one for one in decode_records(data, 1 << 20, position) if one.offset >= offset
                ]
        offset = upper
    return records
