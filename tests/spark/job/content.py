"""Records for the tests of jobs, and DataFrames as messages of `harness.topic_content`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.topic_content import Message, NewMessage
from millstream.spark.job.archiving.archive_job import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: 2026-01-31T22:59:00Z: records one second apart reach the next hour and the next day.
BEGIN_MS = 1_769_900_340_000
#: Without this, retention would delete records with such timestamps.
KEEPING = {"retention.ms": "-1"}

Rows = dict[bytes, tuple[bytes, int, int]]


def some_messages(count: int, partitions: int, seed: int, step_ms: int = 1000) -> list[NewMessage]:
    """Return records with and without keys, values and headers, in partitions of unequal size."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        key = None if rng.random() < 0.1 else b"key-%d" % rng.randrange(20)
        value = None if rng.random() < 0.1 else b"value %d of %d" % (number, seed)
        headers = (("h", b"%d" % number), ("none", None)) if rng.random() < 0.3 else ()
        partition = min(rng.randrange(partitions), rng.randrange(partitions))
        found.append(NewMessage(partition, key, value, BEGIN_MS + number * step_ms, headers))
    return found


def messages_of(frame: DataFrame) -> list[Message]:
    """Return the records of a DataFrame with the source's columns and headers, in order."""
    rows = frame.selectExpr(
        *("topic", "partition", "offset", "key", "value", "unix_millis(timestamp) as ms", "headers")
    ).collect()
    found = [
        Message(
            row.topic,
            row.partition,
            row.offset,
            _bytes(row.key),
            _bytes(row.value),
            row.ms,
            tuple((each.key, _bytes(each.value)) for each in row.headers or ()),
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: each[:3])


def latest_rows(messages: list[Message]) -> Rows:
    """Return the expected value, partition and offset of each key, without Spark."""
    latest: dict[tuple[bytes, int], Message] = {}
    for each in messages:
        if each.key is not None:
            latest[each.key, each.partition] = each
    winners: dict[bytes, Message] = {}
    for each in sorted(latest.values(), key=lambda each: (each.timestamp, each.partition)):
        assert each.key is not None
        winners[each.key] = each
    return {
        key: (each.value, each.partition, each.offset)
        for key, each in winners.items()
        if each.value is not None
    }


def opened_by_others(root: Path, kind: TableFormat) -> tuple[list[Message], int]:
    """Return the records and the number of files as other tools read them."""
    if kind == "delta":
        from deltalake import DeltaTable

        delta = DeltaTable(str(root))
        found, files = delta.to_pyarrow_table(), len(delta.file_uris())
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        place = f"sqlite:///{root / '_millstream' / 'catalog.db'}"
        catalog = SqlCatalog("millstream", uri=place, warehouse=f"file://{root}")
        table = catalog.load_table("millstream.archive")
        found, files = table.scan().to_arrow(), len(table.inspect.files())
    return sorted(map(_message, found.to_pylist()), key=lambda each: each[:3]), files


def _message(row: dict[str, Any]) -> Message:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    names = ("topic", "partition", "offset", "key", "value")
    milliseconds = round(row["timestamp"].timestamp() * 1000)
    return Message(*(row[name] for name in names), milliseconds, headers)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
