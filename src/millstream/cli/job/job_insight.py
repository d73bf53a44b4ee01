"""`millstream job profile`, `audit`, `deadletters`: what is in topics, done by Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.job.job_frame import Shared, SinceOption, UntilOption, job_command, moment_of

app = typer.Typer()


@job_command(app)
def profile(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page with plots there.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    *,
    shared: Shared,
) -> None:
    """Tell what a topic is like: rates, sizes, keys, partitions, and what to do about them."""
    from millstream.spark.job.profiling.profile_job import profile as job

    start, end = moment_of(since, "--since"), moment_of(until, "--until")
    shared.carry_out(
        lambda options: job(topic, html=html, since_ms=start, until_ms=end, **options),
        is_looking=True,
    )


@job_command(app)
def audit(
    source: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The input.")],
    output: Annotated[
        list[str],
        typer.Option(
            "--output", "-o", metavar="TOPIC|FOLDER", help="Topic or Parquet table. Repeatable."
        ),
    ],
    identity: Annotated[
        str,
        typer.Option(
            "--identity", help="What makes records the same: content, header:NAME, sql:EXPRESSION."
        ),
    ] = "content",
    output_identity: Annotated[
        str | None, typer.Option("--output-identity", help="Of the output, where it differs.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Input that is to come out.")
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Duplicates of the input are to come out once.")
    ] = False,
    late: Annotated[
        float | None,
        typer.Option("--late", metavar="SECONDS", help="Output later than this is wrong."),
    ] = None,
    key: Annotated[str, typer.Option("--key", metavar="SQL", help="Key of a table.")] = "key",
    time_sql: Annotated[
        str | None, typer.Option("--time", metavar="SQL", help="When a table's row was written.")
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", metavar="SQL", help="A number that orders a table.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    *,
    shared: Shared,
) -> None:
    """Prove that what went into a pipeline came out once; exits with 1 where it did not."""
    from millstream.spark.job.auditing.audit_job import Question
    from millstream.spark.job.auditing.audit_job import audit as job

    question = Question(
        identity=identity,
        output_identity=output_identity,
        where=where,
        distinct=distinct,
        late_s=late,
        since_ms=moment_of(since, "--since"),
        until_ms=moment_of(until, "--until"),
        key=key,
        time=time_sql,
        order=order,
    )
    shared.carry_out(lambda options: job(source, output, question, **options), is_looking=True)


@job_command(app)
def deadletters(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="The topic, or its dead-letter topic (TOPIC.dlq)."),
    ],
    samples: Annotated[int, typer.Option("--samples", min=0, help="Of each error.")] = 2,
    since: SinceOption = None,
    until: UntilOption = None,
    *,
    shared: Shared,
) -> None:
    """Tell what failed and why: dead letters by error, source, time and schema."""
    from millstream.spark.job.deadletters_job import deadletters as job

    start, end = moment_of(since, "--since"), moment_of(until, "--until")
    shared.carry_out(
        lambda options: job(topic, samples=samples, since_ms=start, until_ms=end, **options),
        is_looking=True,
    )
