"""The audit job: checks that each input record of a pipeline is in its output, once.

    report = audit("orders", ["bills", "orders.dlq"], identity="header:order-id")
    assert report.is_ok, report.outcome

One shuffle reduces both sides to one row per identity, with its count on each side. Only counts and
a few examples leave Spark. Records with the same identity are indistinguishable and compared as a
multiset: three in the input and two in the output means one is missing.

    missing      more often in the input than in the output
    duplicate    in the input, and more often in the output
    unexpected   in the output, but not in the input
    reordered    after a record of the same key that followed it in the same input partition
    late         written more than `late_s` after its input record

Order and lateness are checked for records that occur once on both sides and have a key, if the
output has positions and times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from millstream.spark.job.auditing.audit_side import (
    AuditSide,
    comparable_rows,
    fetch_spans,
    input_side,
    output_side,
)
from millstream.spark.job.offset_coverage import count_offsets
from millstream.spark.job.report import Report, Step, Table
from millstream.spark.job.run import Run, RunOptions
from millstream.spark.job.sql_expression import bucket, bucket_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXAMPLES: Final = 20
_BUCKETS: Final = 48
#: The kinds of errors.
ERRORS: Final = ("missing", "duplicate", "unexpected", "reordered", "late")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the audit compares, and how.

    An identity is `content` (key and value), `header:NAME`, or `sql:EXPRESSION` over the columns.
    """

    identity: str = "content"
    #: The identity of output records, if it differs.
    output_identity: str | None = None
    #: An SQL condition for the input records that the pipeline passes on. Others are ignored.
    where: str | None = None
    #: The pipeline removes duplicates: each identity of the input is expected once.
    distinct: bool = False
    late_s: float | None = None
    #: Only input records in `[since_ms, until_ms)`. The output is always read completely.
    since_ms: int | None = None
    until_ms: int | None = None
    #: SQL expressions over the columns of an output that is a table.
    key: str = "key"
    time: str | None = None
    order: str | None = None


def audit(
    source: str | Sequence[str],
    outputs: Sequence[str],
    question: Question | None = None,
    **options: Unpack[RunOptions],
) -> Report:
    """Compare input topics with output topics and tables.

    An output with a slash or the prefix `parquet:` is a table. The report is not ok if the audit
    finds an error."""
    question = question or Question()
    topics = [source] if isinstance(source, str) else list(source)
    with Run.of("audit", options) as run:
        sides = [input_side(topics, question), *(output_side(each, question) for each in outputs)]
        if run.dry_run:
            return _report_dry_run(run, sides, question)
        run.progress(Step("comparing", 0, 2, "steps"))
        compared = compare(run, sides, question).persist()
        try:
            return _report(run, compared, sides, question)
        finally:
            compared.unpersist()


def _report_dry_run(run: Run, sides: Sequence[AuditSide], question: Question) -> Report:
    rows = []
    for side in sides:
        ranges = fetch_spans(run, side)
        identity = None if side.is_input else question.output_identity
        offsets = None if ranges is None else count_offsets(ranges)
        rows.append((side.name, side.kind, identity or question.identity, offsets))
    columns = ("what", "kind", "identity", "offsets")
    outcome = f"{sides[0].name} would be compared with {_listed(sides[1:])}."
    return Report("audit", outcome, tables=(Table.of("plan", columns, rows),), is_dry=True)


def compare(run: Run, sides: Sequence[AuditSide], question: Question) -> DataFrame:
    """Return one row per identity with its counts on both sides and its errors."""
    from pyspark.sql import functions as f

    frames = [comparable_rows(run, side) for side in sides]
    both = frames[0]
    for frame in frames[1:]:
        both = both.unionByName(frame)
    input_count = "least(count_if(is_input), 1)" if question.distinct else "count_if(is_input)"
    first = {
        f"{name}_{end}": f"min({name}) filter (where {'' if is_input else 'not '}is_input)"
        for name in ("partition", "position", "time")
        for end, is_input in (("in", True), ("out", False))
    }
    counted = both.groupBy("identity").agg(
        f.expr(f"{input_count} as ins"),
        f.expr("count_if(is_input) as read"),
        f.expr("count_if(not is_input) as outs"),
        f.expr("min(key) as key"),
        *(f.expr(f"{text} as {name}") for name, text in first.items()),
    )
    return _with_errors(counted, question)


def _with_errors(counted: DataFrame, question: Question) -> DataFrame:
    late = "cast(0 as bigint)"
    if question.late_s is not None:
        lag = "unix_micros(time_out) - unix_micros(time_in)"
        micros = int(question.late_s * 1_000_000)
        late = f"cast(coalesce({lag} > {micros}, false) as bigint)"
    ahead = (
        "max(position_in) over (partition by partition_out, partition_in, key, is_single "
        "order by position_out rows between unbounded preceding and 1 preceding)"
    )
    single = "ins = 1 and read = 1 and outs = 1 and key is not null and position_out is not null"
    return (
        counted.selectExpr("*", f"({single}) as is_single")
        .selectExpr("*", f"case when is_single then {ahead} end as ahead")
        .selectExpr(
            "*",
            "case when identity is null then ins else greatest(ins - outs, 0) end as missing",
            "case when ins = 0 or identity is null then 0 else greatest(outs - ins, 0) end"
            " as duplicate",
            "case when ins = 0 or identity is null then outs else 0 end as unexpected",
            "cast(coalesce(ahead > position_in, false) as bigint) as reordered",
            f"{late} as late",
        )
    )


def _report(
    run: Run, compared: DataFrame, sides: Sequence[AuditSide], question: Question
) -> Report:
    sums = compared.selectExpr(
        "coalesce(sum(read), 0) as input_records",
        "coalesce(sum(ins), 0) as expected",
        "coalesce(sum(outs), 0) as output_records",
        "coalesce(sum(case when identity is not null then least(ins, outs) end), 0) as matched",
        "coalesce(sum(case when identity is null then read + outs end), 0) as without_identity",
        *(f"coalesce(sum({name}), 0) as {name}" for name in ERRORS),
        "min(unix_micros(coalesce(time_in, time_out))) / 1e6 as first_s",
        "max(unix_micros(coalesce(time_in, time_out))) / 1e6 as last_s",
    ).collect()[0]
    run.progress(Step("listing errors", 1, 2, "steps"))
    facts = {
        name.replace("_", " "): int(sums[name])
        for name in ("input_records", "expected", "output_records", "matched", "without_identity")
    } | {name: int(sums[name]) for name in ERRORS}
    if question.late_s is None:
        del facts["late"]
    wrong = {name: facts[name] for name in ERRORS if facts.get(name)}
    report = Report("audit", _outcome(sides, facts, wrong), facts, is_ok=not wrong)
    if not wrong:
        return report
    span_s = (sums.last_s or 0) - (sums.first_s or 0)
    return replace(report, tables=_tables(compared, bucket_seconds(span_s, _BUCKETS)))


def _outcome(sides: Sequence[AuditSide], facts: dict[str, int], wrong: dict[str, int]) -> str:
    source, there = sides[0].name, _listed(sides[1:])
    if not wrong:
        return f"Exactly once: {facts['expected']} records of {source} are in {there}, each once."
    listed = ", ".join(f"{count} {name}" for name, count in wrong.items())
    return f"Not exactly once, from {source} to {there}: {listed}."


def _listed(sides: Sequence[AuditSide]) -> str:
    return " and ".join(side.name for side in sides)


def _tables(compared: DataFrame, width_s: int) -> tuple[Table, ...]:
    wrong = compared.where(" or ".join(f"{name} > 0" for name in ERRORS))
    by_key = _grouped(wrong, "key").orderBy("wrong", ascending=False).limit(_EXAMPLES)
    moment = bucket("coalesce(time_in, time_out)", width_s)
    timed = wrong.selectExpr("*", f"{moment} as bucket")
    by_time = _grouped(timed, "bucket").orderBy("wrong", ascending=False).limit(_BUCKETS)
    times = by_time.orderBy("bucket").selectExpr(
        "date_format(timestamp_seconds(bucket), \"yyyy-MM-dd'T'HH:mm:ss'Z'\") as time", *ERRORS
    )
    examples = wrong.selectExpr(
        "identity",
        "key",
        "concat(partition_in, '@', position_in) as input",
        "concat(partition_out, '@', position_out) as output",
        *ERRORS,
    ).limit(_EXAMPLES)
    return (
        _table("by key", by_key.select("key", *ERRORS)),
        _table("by time", times),
        _table("examples", examples),
    )


def _grouped(wrong: DataFrame, column: str) -> DataFrame:
    from pyspark.sql import functions as f

    sums = [f.sum(name).alias(name) for name in ERRORS]
    return wrong.groupBy(column).agg(*sums).selectExpr("*", f"{' + '.join(ERRORS)} as wrong")


def _table(title: str, frame: DataFrame) -> Table:
    """Return the rows of a frame, which the caller limits."""
    rows: list[tuple[Any, ...]] = [tuple(row) for row in frame.collect()]
    return Table.of(title, frame.columns, rows)
