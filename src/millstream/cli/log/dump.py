"""The files of a data directory as rows, for `millstream log dump`.

It only reads, trusts no content, and continues after damage where possible. Every row is a dict for
JSON; its `type` is one of

    batch        of a .log file: the header of one record batch
    record       of a .log file, with `deep`: one record, after its batch
    entry        of any other file: one row of an index, snapshot or checkpoint
    damage       damaged data; `message` describes it
    summary      the last row: the totals

The formats are those of the modules that write the files: `records/batch.py`, `log/index/`,
`log/producers/producer_state.py` and `log/directory/checkpoint.py`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from millstream.cli.support.message import put_bytes
from millstream.log.compaction.cleaner_checkpoint import CLEANER_OFFSETS
from millstream.log.directory import checkpoint
from millstream.log.index import offset_index, time_index, transaction_index
from millstream.log.producers.producer_state import (
    SNAPSHOT_CRC_START,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEAD,
    SNAPSHOT_VERSION,
)
from millstream.records import control
from millstream.records.batch import (
    CRC_START,
    BatchHeader,
    CorruptBatch,
    iterate_batches,
)
from millstream.records.compression import CompressionType
from millstream.records.crc import crc32c
from millstream.records.record import Record, decode_records

Row: TypeAlias = dict[str, Any]

#: A batch that decompresses to more than this counts as damaged.
RECORDS_BYTES_MAX: Final = 1 << 30

#: Kafka preallocates the index of the active segment with entries of zeros.
_PREALLOCATED: Final = (0, 0)
_CONTROL_TYPES: Final = {control.ABORT: "abort", control.COMMIT: "commit", 2: "leader change"}

_CHECKPOINTS: Final = {
    checkpoint.LEADER_EPOCHS: ("epoch", "start_offset"),
    checkpoint.RECOVERY_POINTS: ("topic", "partition", "offset"),
    checkpoint.LOG_STARTS: ("topic", "partition", "offset"),
    checkpoint.HIGH_WATERMARKS: ("topic", "partition", "offset"),
    CLEANER_OFFSETS: ("topic", "partition", "offset"),
}
_SEGMENT_SUFFIXES: Final = frozenset({"log", "index", "timeindex", "txnindex", "snapshot"})
#: Suffixes of files that are being replaced or deleted.
_TEMPORARY_SUFFIXES: Final = (".deleted", ".cleaned", ".swap")


def dump_file(path: Path, *, deep: bool, verify: bool) -> Iterator[Row]:
    """Return all rows of one file. Raises OSError, or KeyError if it is not a log file."""
    reader = _READERS[file_kind(path) or ""]
    return reader(path, deep, verify)


def file_kind(path: Path) -> str | None:
    """Return the kind of a file by its name, or None."""
    if path.name in _CHECKPOINTS:
        return "checkpoint"
    name = path.name
    for suffix in _TEMPORARY_SUFFIXES:
        name = name.removesuffix(suffix)
    stem, dot, suffix = name.rpartition(".")
    return suffix if dot and stem.isdecimal() and suffix in _SEGMENT_SUFFIXES else None


def base_offset(path: Path) -> int:
    """Return the offset in a file's name."""
    return int(path.name.partition(".")[0])


# Record batches


def _dump_log(path: Path, deep: bool, verify: bool) -> Iterator[Row]:
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            yield _log_summary(0, 0, None, None)
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                yield from _dump_batches(view, base_offset(path), deep, verify)
            finally:
                view.release()


def _dump_batches(view: memoryview, first_offset: int, deep: bool, verify: bool) -> Iterator[Row]:
    batches = records = end = 0
    first: int | None = None
    next_offset = first_offset
    try:
        for position, header in iterate_batches(view, verify_crc=False):
            batches += 1
            records += header.count
            first = header.base_offset if first is None else first
            end = position + header.size
            yield _batch_row(position, header)
            if header.base_offset < next_offset:
                yield _damage(position, f"offset {header.base_offset} follows {next_offset - 1}")
            next_offset = header.next_offset
            if verify and crc32c(view[position + CRC_START : end]) != header.crc:
                yield _damage(
                    position, f"CRC of the batch with offset {header.base_offset} is wrong"
                )
            if deep:
                yield from _record_rows(view, position, header)
    except CorruptBatch as damage:
        yield _damage(end, str(damage.message))
    else:
        if end < len(view):
            yield _damage(end, f"{len(view) - end} bytes at the end are not a complete batch")
    yield _log_summary(batches, records, first, next_offset if batches else None)


def _batch_row(position: int, header: BatchHeader) -> Row:
    try:
        codec = CompressionType(header.codec).name.lower()
    except ValueError:
        codec = f"unknown ({header.codec})"
    return {
        "type": "batch",
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "codec": codec,
        "timestamp_type": "LogAppendTime" if header.is_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc": header.crc,
    }


def _record_rows(view: memoryview, position: int, header: BatchHeader) -> Iterator[Row]:
    try:
        records = decode_records(view[position : position + header.size], RECORDS_BYTES_MAX)
    except CorruptBatch as damage:
        yield _damage(position, f"records of the batch do not decode: {damage.message}")
        return
    for record in records:
        yield _control_row(record) if header.is_control else _record_row(record)


def _record_row(record: Record) -> Row:
    row: Row = {"type": "record", "offset": record.offset, "timestamp": record.timestamp}
    put_bytes(row, "key", record.key)
    put_bytes(row, "value", record.value)
    headers = []
    for name, value in record.headers:
        header: Row = {"key": name.encode("utf-8", "surrogateescape").decode(errors="replace")}
        put_bytes(header, "value", value)
        headers.append(header)
    row["headers"] = headers
    return row


def _control_row(record: Record) -> Row:
    row: Row = {"type": "record", "offset": record.offset, "timestamp": record.timestamp}
    if record.key is not None and len(record.key) >= control.KEY.size:
        _, kind = control.KEY.unpack_from(record.key)
        row["control"] = _CONTROL_TYPES.get(kind, str(kind))
    else:
        row["control"] = "malformed"
    return row


def _log_summary(batches: int, records: int, first: int | None, end: int | None) -> Row:
    return {
        "type": "summary",
        "batches": batches,
        "records": records,
        "start_offset": first,
        "end_offset": end,
    }


# Indexes


def _dump_offset_index(path: Path, deep: bool, verify: bool) -> Iterator[Row]:
    base = base_offset(path)
    positions = _batch_ends(path) if verify else None
    last = (-1, -1)
    count = 0
    for number, (relative, position) in enumerate(_entries(path, offset_index.ENTRY)):
        if (relative, position) == _PREALLOCATED:
            break
        count += 1
        offset = base + relative
        yield {"type": "entry", "offset": offset, "position": position}
        if relative <= last[0] or position <= last[1]:
            yield _damage(number, "entry is not after the previous one")
        elif positions is not None and positions.get(position) != offset:
            yield _damage(number, f"no batch at position {position} of the log ends at {offset}")
        last = (relative, position)
    yield from _index_end(path, offset_index.ENTRY, count)


def _dump_time_index(path: Path, deep: bool, verify: bool) -> Iterator[Row]:
    base = base_offset(path)
    last = (-1, -1)
    count = 0
    for number, (timestamp, relative) in enumerate(_entries(path, time_index.ENTRY)):
        if (timestamp, relative) == _PREALLOCATED:
            break
        count += 1
        yield {"type": "entry", "timestamp": timestamp, "offset": base + relative}
        if timestamp <= last[0] or relative < last[1]:
            yield _damage(number, "entry is not later than the previous one")
        last = (timestamp, relative)
    yield from _index_end(path, time_index.ENTRY, count)


def _dump_transaction_index(path: Path, deep: bool, verify: bool) -> Iterator[Row]:
    names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
    count = 0
    for fields in _entries(path, transaction_index.ENTRY):
        count += 1
        yield {"type": "entry", **dict(zip(names, fields, strict=True))}
    yield from _index_end(path, transaction_index.ENTRY, count)


def _entries(path: Path, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    data = path.read_bytes()
    return entry.iter_unpack(memoryview(data)[: len(data) // entry.size * entry.size])


def _index_end(path: Path, entry: struct.Struct, count: int) -> Iterator[Row]:
    rest = path.stat().st_size % entry.size
    if rest:
        yield _damage(count, f"{rest} bytes at the end are not a complete entry")
    yield {"type": "summary", "entries": count}


def _batch_ends(index: Path) -> dict[int, int] | None:
    """Return the last offset of each batch of the index's log, by position; None without a log."""
    log = index.with_name(index.name.replace(".index", ".log"))
    if not log.is_file() or not log.stat().st_size:
        return None
    ends: dict[int, int] = {}
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            for position, header in iterate_batches(view, verify_crc=False):
                ends[position] = header.last_offset
        except CorruptBatch:
            # The dump of the log reports it.
            pass
        finally:
            view.release()
    return ends


# Producer snapshots and checkpoints


def _dump_snapshot(path: Path, deep: bool, verify: bool) -> Iterator[Row]:
    data = path.read_bytes()
    if len(data) < SNAPSHOT_HEAD.size:
        yield _damage(0, f"{len(data)} bytes are too few for a snapshot")
        yield {"type": "summary", "entries": 0}
        return
    version, crc, count = SNAPSHOT_HEAD.unpack_from(data)
    if crc32c(data[SNAPSHOT_CRC_START:]) != crc:
        yield _damage(2, "CRC is wrong")
    if version != SNAPSHOT_VERSION or len(data) - SNAPSHOT_HEAD.size != count * SNAPSHOT_ENTRY.size:
        yield _damage(0, f"version {version} with {count} producers does not fit {len(data)} bytes")
        yield {"type": "summary", "entries": 0}
        return
    names = (
        *("producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta"),
        *("timestamp", "coordinator_epoch", "transaction_start_offset"),
    )
    for fields in SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[SNAPSHOT_HEAD.size :]):
        yield {"type": "entry", **dict(zip(names, fields, strict=True))}
    yield {"type": "summary", "entries": count}


def _dump_checkpoint(path: Path, deep: bool, verify: bool) -> Iterator[Row]:
    names = _CHECKPOINTS[path.name]
    lines = path.read_text(errors="replace").splitlines()
    count = 0
    for number, line in enumerate(lines[2:], start=2):
        words = line.rsplit(maxsplit=len(names) - 1)
        numbers = words[1:] if names[0] == "topic" else words
        if len(words) != len(names) or not all(w.lstrip("-").isdecimal() for w in numbers):
            yield _damage(number, f"line {number + 1} is not {' '.join(names)}")
            continue
        count += 1
        values = [
            word if name == "topic" else int(word) for name, word in zip(names, words, strict=True)
        ]
        yield {"type": "entry", **dict(zip(names, values, strict=True))}
    if lines[:1] != ["0"] or lines[1:2] != [str(count)]:
        yield _damage(0, f"the first two lines should be 0 and {count}")
    yield {"type": "summary", "entries": count}


def _damage(position: int, message: str) -> Row:
    return {"type": "damage", "position": position, "message": message}


_READERS: Final[dict[str, Callable[[Path, bool, bool], Iterator[Row]]]] = {
    "log": _dump_log,
    "index": _dump_offset_index,
    "timeindex": _dump_time_index,
    "txnindex": _dump_transaction_index,
    "snapshot": _dump_snapshot,
    "checkpoint": _dump_checkpoint,
}
