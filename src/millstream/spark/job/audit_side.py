"""One side of an audit: which records it has, and how they are reduced to comparable rows.

Rows of both sides: `identity` string, `key` string, `time` timestamp, `lane` string (what has an
order of its own: a partition), `position` bigint (the place in it), `is_input` boolean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from millstream.spark.job.expression import between, content_id, header, literal, readable
from millstream.spark.job.failure import usage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.spark.job.audit_job import Question
    from millstream.spark.job.run import Run

Kind: TypeAlias = Literal["topic", "table"]
_TABLE: Final = "parquet:"
_KEY_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Side:
    """`where` and the five expressions are SQL over the columns of the topic or table."""

    name: str
    kind: Kind
    #: Topics, with commas between them, or the folder of a table.
    place: str
    is_input: bool
    identity: str
    where: str | None = None
    key: str = "key"
    time: str | None = "timestamp"
    lane: str = "concat(topic, '-', partition)"
    position: str | None = "offset"


def input_side(topics: Sequence[str], question: Question) -> Side:
    if not topics:
        raise usage("name the topic that is the input.")
    identity = identity_sql(question.identity)
    return Side(_named(topics), "topic", ",".join(topics), True, identity, _conditions(question))


def output_side(output: str, question: Question) -> Side:
    identity = identity_sql(question.output_identity or question.identity)
    if not (output.startswith(_TABLE) or "/" in output):
        return Side(output, "topic", output, False, identity)
    path = output.removeprefix(_TABLE)
    return Side(
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
    raise usage(
        f"{identity!r} is no identity: use content, header:NAME or sql:EXPRESSION, for example "
        "sql:get_json_object(string(value), '$.id')."
    )


def records(run: Run, side: Side) -> DataFrame:
    """The rows of one side."""
    frame = _topic(run, side) if side.kind == "topic" else run.session().read.parquet(side.place)
    if side.where is not None:
        frame = frame.where(side.where)
    return frame.selectExpr(
        f"{side.identity} as identity",
        f"{_key(frame, side)} as key",
        f"cast({side.time or 'null'} as timestamp) as time",
        f"{side.lane} as lane",
        f"cast({side.position or 'null'} as bigint) as position",
        f"{str(side.is_input).lower()} as is_input",
    )


def _topic(run: Run, side: Side) -> DataFrame:
    options = {"subscribe": side.place, "includeHeaders": "true"}
    return run.reader().options(**options).load()


def _key(frame: DataFrame, side: Side) -> str:
    """The key as text; tables may have it as any type, or have none."""
    if side.key == "key" and "key" not in frame.columns:
        return "cast(null as string)"
    if dict(frame.selectExpr(f"{side.key} as key").dtypes)["key"] == "binary":
        return readable(side.key, _KEY_CHARACTERS_MAX)
    return f"substring(cast({side.key} as string), 1, {_KEY_CHARACTERS_MAX})"


def _conditions(question: Question) -> str:
    timely = between("timestamp", question.since_ms, question.until_ms)
    return timely if question.where is None else f"({question.where}) and {timely}"


def _named(topics: Sequence[str]) -> str:
    return ", ".join(topics)
