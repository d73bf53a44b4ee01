"""The profile job: measures rates, sizes, keys and partitions of a topic, and gives advice.

    report = profile("orders", html="orders.html")

The report's notes contain the advice. `html` also writes a page with plots.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, Unpack

from millstream.spark.job.offset_coverage import offsets_json
from millstream.spark.job.profiling import profile_measure as measure
from millstream.spark.job.profiling.profile_advice import TopicProfile, advice, partitions_needed
from millstream.spark.job.report import Report, Step, Table, Value
from millstream.spark.job.run import Run, RunOptions
from millstream.spark.job.sql_expression import between, bucket_seconds
from millstream.spark.job.topic_offsets import TopicOffsets, fetch_topic_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITIONS_SHOWN: Final = 50
_STEPS: Final = ("times", "amounts", "keys", "duplicates", "compression")
_T = TypeVar("_T")


def profile(
    topic: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    html: str | None = None,
    **options: Unpack[RunOptions],
) -> Report:
    """Profile the present records of a topic, or those in `[since_ms, until_ms)`.

    Raises JobError if the topic does not exist."""
    with Run.of("profile", options) as run:
        topics = fetch_topic_offsets(run, [topic])
        if run.dry_run:
            records = sum(span.size for span in topics.spans.values())
            outcome = f"{topic} has up to {records} records in {len(topics.spans)} partitions."
            return Report("profile", outcome, is_dry=True)
        frame = _frame(run, topics).where(between("timestamp", since_ms, until_ms))
        figures = profile_frame(run, topic, frame, len(topics.spans))
    if html is not None:
        from millstream.spark.job.profiling.profile_page import page

        Path(html).write_text(page(figures, advice(figures)), encoding="utf-8")
    return _report(figures)


def profile_frame(run: Run, topic: str, frame: DataFrame, partitions: int) -> TopicProfile:
    """Measure the records of a DataFrame with the source's columns."""
    done = 0

    def step(function: Callable[[], _T]) -> _T:
        nonlocal done
        run.progress(Step(f"profiling {topic}: {_STEPS[done]}", done, len(_STEPS), "passes"))
        done += 1
        return function()

    times = step(lambda: tuple(measure.times(frame)))
    first, last = (
        min((t.first_s for t in times), default=0),
        max((t.last_s for t in times), default=0),
    )
    width = bucket_seconds(last - first)
    load = step(lambda: measure.load(frame, width))
    keys = step(lambda: measure.keys(frame))
    duplicates = step(lambda: measure.duplicates(frame))
    packed = step(lambda: measure.packed(frame, load.records))
    return TopicProfile(topic, partitions, width, times, load, keys, duplicates, packed)


def _frame(run: Run, topics: TopicOffsets) -> DataFrame:
    """Read the topic between fixed offsets, so that every pass reads the same records."""
    (name,) = topics.ids
    return (
        run.reader()
        .option("subscribe", name)
        .option("startingOffsets", json.dumps(offsets_json(topics.spans, end=False)))
        .option("endingOffsets", json.dumps(offsets_json(topics.spans, end=True)))
        .load()
    )


def _report(figures: TopicProfile) -> Report:
    load = figures.load
    outcome = (
        f"{figures.topic} has {load.records} records ({load.bytes / 1e6:.1f} MB) in "
        f"{figures.partitions} partitions, of {figures.span_s:.0f} seconds."
    )
    tables = (_partitions(figures), _keys(figures), _codecs(figures))
    return Report("profile", outcome, _facts(figures), tables, tuple(advice(figures)))


def _facts(figures: TopicProfile) -> dict[str, Value]:
    load = figures.load
    sizes = dict(zip(("p50", "p90", "p99"), load.sizes, strict=False))
    return {
        "records": load.records,
        "bytes": load.bytes,
        "records per second": load.records / figures.span_s,
        "bytes per second": load.bytes / figures.span_s,
        "peak records per second": figures.peak_records_s,
        "peak bytes per second": figures.peak_bytes_s,
        "partitions": figures.partitions,
        "partitions needed": partitions_needed(figures.peak_bytes_s),
        **{f"record bytes {name}": size for name, size in sizes.items()},
        "record bytes max": load.size_max,
        "null keys": load.null_keys,
        "null values": load.null_values,
        "keys": figures.keys.distinct,
        "duplicates": figures.duplicates,
        "out of order": figures.behind,
        "out of order seconds max": figures.behind_s_max,
    }


def _partitions(figures: TopicProfile) -> Table:
    behind = {each.partition: each.behind for each in figures.times}
    largest = sorted(figures.load.partitions, key=lambda each: -each.records)
    rows = [
        (each.at, each.records, each.bytes, figures.share(each.records), behind.get(each.at, 0))
        for each in largest[:_PARTITIONS_SHOWN]
    ]
    columns = ("partition", "records", "bytes", "share", "out of order")
    return Table.of("largest partitions", columns, rows)


def _keys(figures: TopicProfile) -> Table:
    rows = [
        (key.name, key.records, key.bytes, figures.share(key.records), figures.is_hot_key(key))
        for key in figures.keys.named
    ]
    return Table.of("largest keys", ("key", "records", "bytes", "share", "hot"), rows)


def _codecs(figures: TopicProfile) -> Table:
    names = sorted(figures.packed.packed_bytes, key=figures.packed.ratio)
    rows = [(name, figures.packed.ratio(name)) for name in names]
    return Table.of("compression", ("codec", "ratio"), rows)
