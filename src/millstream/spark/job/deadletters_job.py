"""The deadletters job: counts dead letters by error, source, time and schema, with samples.

Reads `<topic>.dlq` as workers and pipelines write it (headers: `client/worker/message/header.py`);
dead letters of other programs may lack some headers and count under an empty name. Error messages
are grouped without their numbers and quoted parts. The schema of a value is derived from its bytes:
the schema id of a schema registry, the field names of a JSON object, or the kind of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Unpack

from millstream.client.dead_letter.letter import topic_of
from millstream.client.worker.message import header as names
from millstream.spark.job.offset_coverage import PartitionSpans, count_offsets
from millstream.spark.job.report import Report, Step, Table
from millstream.spark.job.run import Run, RunOptions
from millstream.spark.job.sql_expression import (
    between,
    bucket,
    bucket_seconds,
    header_text,
    readable,
)
from millstream.spark.job.topic_offsets import fetch_topic_offsets, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_GROUPS: Final = 50
_PATTERN_CHARACTERS_MAX: Final = 160
_BUCKETS: Final = 48
_TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss'Z'"
#: The title and the columns of each grouping.
GROUPINGS: Final = {
    "by error": ("error", "message"),
    "by source": ("source", "consumer"),
    "by time": ("time",),
    "by schema": ("schema", "error"),
}


def deadletters(
    topic: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    samples: int = 2,
    **options: Unpack[RunOptions],
) -> Report:
    """Report the dead letters of `topic`, which may also be the dead-letter topic itself.

    Only dead letters written in `[since_ms, until_ms)` count. The report shows up to `samples` of
    each error."""
    dead_letter_topic = topic_of(topic)
    with Run.of("deadletters", options) as run:
        ranges = fetch_topic_offsets(run, [dead_letter_topic]).spans
        if run.dry_run:
            outcome = f"Up to {count_offsets(ranges)} letters of {dead_letter_topic} would be read."
            return Report("deadletters", outcome, {"offsets": count_offsets(ranges)}, is_dry=True)
        run.progress(Step("reading letters", 0, 3, "steps"))
        found = letters(run, ranges).where(between("died", since_ms, until_ms))
        count, first_s, last_s = found.selectExpr(
            "count(1)", "min(unix_micros(died)) / 1e6", "max(unix_micros(died)) / 1e6"
        ).collect()[0]
        if not count:
            return Report("deadletters", f"{dead_letter_topic} has no letters.", {"letters": 0})
        run.progress(Step("grouping", 1, 3, "steps"))
        tables = _grouped(found, bucket_seconds(last_s - first_s, _BUCKETS), count)
        run.progress(Step("taking samples", 2, 3, "steps"))
        tables.append(_samples(found, samples))
    errors = len(tables[0].rows)
    kinds = f"{errors}{'+' * (errors == _GROUPS)}"
    outcome = f"{dead_letter_topic} has {count} letters of {kinds} kinds of error."
    return Report("deadletters", outcome, {"letters": count}, tuple(tables))


def letters(run: Run, ranges: PartitionSpans) -> DataFrame:
    """Return one row per dead letter: `partition`, `offset`, `died`, `error`, `message`, `text`
    (the original message), `source`, `consumer`, `schema`, `key`, `value` (as text)."""
    message = f"coalesce({header_text(names.ERROR_MESSAGE)}, '')"
    died = f"timestamp_millis(try_cast({header_text(names.DEAD_TIMESTAMP)} as bigint))"
    return read_ranges(run, ranges).selectExpr(
        "partition",
        "offset",
        f"coalesce({died}, timestamp) as died",
        f"coalesce({header_text(names.ERROR_TYPE)}, '') as error",
        f"{_pattern(message)} as message",
        f"{message} as text",
        f"coalesce({header_text(names.TOPIC)}, '') as source",
        f"coalesce({header_text(names.GROUP)}, '') as consumer",
        f"{schema_sql('value')} as schema",
        f"{readable('key', 60)} as key",
        f"{readable('value')} as value",
    )


def _pattern(message: str) -> str:
    """Return SQL for an error message without its variable parts."""
    unquoted = f"""regexp_replace({message}, '"[^"]*"|\\'[^\\']*\\'', '…')"""
    unnumbered = f"regexp_replace({unquoted}, '[0-9]+', '#')"
    return f"substring({unnumbered}, 1, {_PATTERN_CHARACTERS_MAX})"


def schema_sql(column: str) -> str:
    """Return SQL for the name of a value's schema, derived from its bytes."""
    text = f"try_validate_utf8(cast({column} as string))"
    fields = f"json_object_keys({text})"
    registered = f"hex(substring({column}, 1, 1)) = '00' and octet_length({column}) > 5"
    return f"""case
        when {column} is null then 'null'
        when octet_length({column}) = 0 then 'empty'
        when {registered} then concat('schema id ', conv(hex(substring({column}, 2, 4)), 16, 10))
        when {text} is null then 'binary'
        when {fields} is not null
            then concat('json {{', array_join(array_sort({fields}), ', '), '}}')
        when startswith(ltrim({text}), '{{') then 'broken json'
        when startswith(ltrim({text}), '[') then 'json array'
        else 'text' end"""


def _grouped(found: DataFrame, width_s: int, count: int) -> list[Table]:
    """Compute all groupings in one pass. Return the largest groups of each."""
    from pyspark.sql import functions as f

    start = f"timestamp_seconds({bucket('died', width_s)})"
    timed = found.selectExpr("*", f'date_format({start}, "{_TIME_FORMAT}") as time')
    columns = sorted({name for each in GROUPINGS.values() for name in each})
    sets = [[f.col(name) for name in each] for each in GROUPINGS.values()]
    groups = timed.groupingSets(sets, *(f.col(name) for name in columns)).agg(
        f.grouping_id().alias("grouping"),
        f.count("*").alias("letters"),
        f.min("died").alias("first"),
        f.max("died").alias("last"),
    )
    order = "row_number() over (partition by grouping order by letters desc, first) as rank"
    largest = groups.selectExpr("*", order).where(f"rank <= {_GROUPS}")
    shown = [f'date_format({name}, "{_TIME_FORMAT}") as {name}' for name in ("first", "last")]
    rows = largest.selectExpr("grouping", "rank", *columns, "letters", *shown).collect()
    return [
        _table(title, each, [row for row in rows if row.grouping == _mask(columns, each)], count)
        for title, each in GROUPINGS.items()
    ]


def _mask(columns: Sequence[str], kept: Sequence[str]) -> int:
    """Return Spark's grouping id: a bit for each column that is not in the grouping set."""
    return int("".join("0" if name in kept else "1" for name in columns), 2)


def _table(title: str, kept: tuple[str, ...], rows: list[Row], count: int) -> Table:
    ordered = sorted(rows, key=lambda row: row.time if title == "by time" else row.rank)
    cells = [
        (*(row[name] for name in kept), row.letters, row.letters / count, row["first"], row["last"])
        for row in ordered
    ]
    return Table.of(title, (*kept, "letters", "share", "first", "last"), cells)


def _samples(found: DataFrame, samples: int) -> Table:
    """Return the newest dead letters of the most frequent errors."""
    newest = "row_number() over (partition by error, message order by died desc, offset desc)"
    size = "count(1) over (partition by error, message)"
    rows = (
        found.selectExpr("*", f"{newest} as rank", f"{size} as letters")
        .where(f"rank <= {samples}")
        .orderBy("letters", "error", "message", "rank", ascending=[False, True, True, True])
        .limit(_GROUPS * max(1, samples))
        .selectExpr("concat(partition, ':', offset)", "error", "text", "key", "value")
    )
    columns = ("letter", "error", "message", "key", "value")
    return Table.of("samples", columns, (tuple(row) for row in rows.collect()))
