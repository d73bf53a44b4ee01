"""One side of an audit: which records it has, and how they are reduced to comparable rows.

Rows of both sides: `identity` string, `key` string, `time` timestamp, `lane` string (what has an
order of its own: a partition), `position` bigint (the place in it), `is_input` boolean.
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
    """The two conditions and the five expressions are SQL over the columns of the topic or table.
    `when` is of our own making, the others are as they were given."""

    name: str
    kind: Kind
    #: Topics, with commas between them, or the folder of a table.
    place: str
    is_input: bool
    identity: str
    when: str = "true"
    where: str | None = None
    key: str = "key"
    time: str | None = "timestamp"
    lane: str = "concat(topic, '-', partition)"
    position: str | None = "offset"


def input_side(topics: Sequence[str], question: Question) -> AuditSide:
    if not topics:
        raise usage_error("name the topic that is the input.")
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
        lane=literal(path),
        position=question.order,
    )


def identity_sql(identity: str) -> str:
    """Raises JobError for what is no identity."""
    kind, colon, rest = identity.partition(":")
    if identity == "content":
        return content_id()
    if kind == "header" and rest:
        return readable(header(rest), 1000)
    if kind == "sql" and colon and rest.strip():
        return f"cast(({rest}) as string)"
    raise usage_error(
        f"{identity!r} is no identity: use content, header:NAME or sql:EXPRESSION, for example "
        "sql:get_json_object(string(value), '$.id')."
    )


def fetch_spans(run: Run, side: AuditSide) -> PartitionSpans | None:
    """The offsets of topics now; None of a table. Raises JobError where there is no such topic."""
    return fetch_topic_offsets(run, side.place.split(",")).spans if side.kind == "topic" else None


def comparable_rows(run: Run, side: AuditSide) -> DataFrame:
    """The rows of one side. Raises JobError where it is not there, or where its SQL is wrong."""
    ranges = fetch_spans(run, side)
    frame = _table(run, side.place) if ranges is None else read_ranges(run, ranges)
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
        f"{side.lane} as lane",
        f"cast({side.position or 'null'} as bigint) as position",
        f"{str(side.is_input).lower()} as is_input",
    )


def _table(run: Run, folder: str) -> DataFrame:
    """A folder of Parquet, or an archive, which knows itself which of its files count."""
    kind = format_of(Path(folder))
    if kind is not None:
        store = open_store(folder, kind)
        state = store.committed()
        return store.read(run.session(), state, state.coverage.topics())
    return analyse_table(lambda: run.session().read.parquet(folder), folder)


def _key(frame: DataFrame, side: AuditSide) -> str:
    """The key as text; tables may have it as any type, or have none."""
    if side.key == "key" and "key" not in frame.columns:
        return "cast(null as string)"
    if dict(frame.selectExpr(f"{side.key} as key").dtypes)["key"] == "binary":
        return readable(side.key, _KEY_CHARACTERS_MAX)
    return f"substring(cast({side.key} as string), 1, {_KEY_CHARACTERS_MAX})"


def _named(topics: Sequence[str]) -> str:
    return ", ".join(topics)
