"""`millstream job profile`, `audit`, `deadletters`: read-only analyses with Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.job.job_frame import Shared, SinceOption, UntilOption, job_command, moment_of
from millstream.cli.support.completion import complete_topics
from millstream.cli.support.quantity import Duration, duration_option

app = typer.Typer()


@job_command(app)
def profile(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write an HTML page with plots.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    *,
    shared: Shared,
) -> None:
    """Analyse a topic: rates, sizes, keys, partitions, and recommendations."""
    from millstream.spark.job.profiling.profile_job import profile as job

    start, end = moment_of(since, "--since"), moment_of(until, "--until")
    shared.run_job(
        lambda options: job(topic, html=html, since_ms=start, until_ms=end, **options),
        is_read_only=True,
    )


@job_command(app)
def audit(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="The input topics.", autocompletion=complete_topics
        ),
    ],
    output: Annotated[
        list[str],
        typer.Option(
            "--output",
            "-o",
            metavar="TOPIC|FOLDER",
            help="Output topic or Parquet table. Repeatable.",
            autocompletion=complete_topics,
        ),
    ],
    identity: Annotated[
        str,
        typer.Option(
            "--identity", help="Identity of a record: content, header:NAME or sql:EXPRESSION."
        ),
    ] = "content",
    output_identity: Annotated[
        str | None,
        typer.Option("--output-identity", help="Identity of an output record, if it differs."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="SQL", help="Only input records that match must be in the output."
        ),
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Duplicates in the input must be in the output once.")
    ] = False,
    late: Annotated[
        Duration | None,
        duration_option("--late", help="Output that is later than this is an error."),
    ] = None,
    key: Annotated[str, typer.Option("--key", metavar="SQL", help="Key of a table's row.")] = "key",
    time_sql: Annotated[
        str | None, typer.Option("--time", metavar="SQL", help="Write time of a table's row.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", metavar="SQL", help="Number that orders a table's rows."),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    *,
    shared: Shared,
) -> None:
    """Check that each input record of a pipeline is in its output once; exit with 1 if not."""
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
    shared.run_job(lambda options: job(source, output, question, **options), is_read_only=True)


@job_command(app)
def deadletters(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="The topic, or its dead-letter topic (TOPIC.dlq).",
            autocompletion=complete_topics,
        ),
    ],
    samples: Annotated[int, typer.Option("--samples", min=0, help="Samples of each error.")] = 2,
    since: SinceOption = None,
    until: UntilOption = None,
    *,
    shared: Shared,
) -> None:
    """Analyse dead letters by error, source, time and schema."""
    from millstream.spark.job.deadletters_job import deadletters as job

    start, end = moment_of(since, "--since"), moment_of(until, "--until")
    shared.run_job(
        lambda options: job(topic, samples=samples, since_ms=start, until_ms=end, **options),
        is_read_only=True,
    )
