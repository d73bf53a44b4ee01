"""One side of an audit: its records, reduced to rows that can be compared.

Columns of the rows: `identity` string, `key` string, `time` timestamp, `partition` string (records
are ordered within it), `position` bigint (the offset in it), `is_input` boolean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from millstream.spark.job.analysis import analyse_sql, analyse_table
from millstream.spark.job.archiving.archive_job import format_of, open_store
from millstream.spark.job.job_error import usage_error
from millstream.spark.job.offset_coverage import PartitionSpans
from millstream.spark.job.sql_expression import between, content_id, header, literal, readable
from millstream.spark.job.topic_offsets import fetch_topic_offsets, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.spark.job.auditing.audit_job import Question
    from millstream.spark.job.run import Run

Kind: TypeAlias = Literal["topic", "table"]
_TABLE: Final = "parquet:"
_KEY_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class AuditSide:
    """A topic or table, and SQL over its columns.

    The job writes `when`; the other conditions and expressions come from the user."""

    name: str
    kind: Kind
    #: Topics separated by commas, or the folder of a table.
    location: str
    is_input: bool
    identity: str
    when: str = "true"
    where: str | None = None
    key: str = "key"
    time: str | None = "timestamp"
    partition: str = "concat(topic, '-', partition)"
    position: str | None = "offset"


def input_side(topics: Sequence[str], question: Question) -> AuditSide:
    """Return the input side. Raises JobError if there is no topic."""
    if not topics:
        raise usage_error("name the input topic.")
    return AuditSide(
        _named(topics),
        "topic",
        ",".join(topics),
        True,
        identity_sql(question.identity),
        when=between("timestamp", question.since_ms, question.until_ms),
        where=question.where,
    )


def output_side(output: str, question: Question) -> AuditSide:
    """Return the side of one output, a topic or a table."""
    identity = identity_sql(question.output_identity or question.identity)
    if not (output.startswith(_TABLE) or "/" in output):
        return AuditSide(output, "topic", output, False, identity)
    path = output.removeprefix(_TABLE)
    return AuditSide(
        path,
        "table",
        path,
        False,
        identity,
        key=question.key,
        time=question.time,
        partition=literal(path),
        position=question.order,
    )


def identity_sql(identity: str) -> str:
    """Return the SQL of an identity. Raises JobError if it is not an identity."""
    kind, colon, rest = identity.partition(":")
    if identity == "content":
        return content_id()
    if kind == "header" and rest:
        return readable(header(rest), 1000)
    if kind == "sql" and colon and rest.strip():
        return f"cast(({rest}) as string)"
    raise usage_error(
        f"{identity!r} is not an identity: use content, header:NAME or sql:EXPRESSION, for example "
        "sql:get_json_object(string(value), '$.id')."
    )


def fetch_spans(run: Run, side: AuditSide) -> PartitionSpans | None:
    """Return the present offsets of topics, or None for a table.

    Raises JobError if a topic does not exist."""
    return (
        fetch_topic_offsets(run, side.location.split(",")).spans if side.kind == "topic" else None
    )


def comparable_rows(run: Run, side: AuditSide) -> DataFrame:
    """Return the rows of a side. Raises JobError if it does not exist or its SQL is wrong."""
    ranges = fetch_spans(run, side)
    frame = _table(run, side.location) if ranges is None else read_ranges(run, ranges)
    frame = frame.where(side.when)
    where = side.where
    if where is not None:
        frame = analyse_sql(lambda: frame.where(where), f"the condition {where!r}")
    return analyse_sql(lambda: _rows(frame, side), f"the SQL for {side.name}")


def _rows(frame: DataFrame, side: AuditSide) -> DataFrame:
    return frame.selectExpr(
        f"{side.identity} as identity",
        f"{_key(frame, side)} as key",
        f"cast({side.time or 'null'} as timestamp) as time",
        f"{side.partition} as partition",
        f"cast({side.position or 'null'} as bigint) as position",
        f"{str(side.is_input).lower()} as is_input",
    )


def _table(run: Run, folder: str) -> DataFrame:
    """Read a folder of Parquet, or the committed files of an archive."""
    kind = format_of(Path(folder))
    if kind is not None:
        store = open_store(folder, kind)
        state = store.committed()
        return store.read(run.session(), state, state.coverage.topics())
    return analyse_table(lambda: run.session().read.parquet(folder), folder)


def _key(frame: DataFrame, side: AuditSide) -> str:
    """Return SQL for the key as text. The key of a table may have any type or be missing."""
    if side.key == "key" and "key" not in frame.columns:
        return "cast(null as string)"
    if dict(frame.selectExpr(f"{side.key} as key").dtypes)["key"] == "binary":
        return readable(side.key, _KEY_CHARACTERS_MAX)
    return f"substring(cast({side.key} as string), 1, {_KEY_CHARACTERS_MAX})"


def _named(topics: Sequence[str]) -> str:
    return ", ".join(topics)
