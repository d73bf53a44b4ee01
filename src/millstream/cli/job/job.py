"""`millstream job`: archive, replay, snapshot: work on whole topics, done by Spark.

The commands that only look are in `job_insight.py`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

import typer

from millstream.cli.job import job_insight
from millstream.cli.job.job_frame import (
    AllowGapsOption,
    Shared,
    SinceOption,
    UntilOption,
    job_command,
    moment_of,
)
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.position import is_duration

app = typer.Typer(no_args_is_help=True, help="Work on whole topics with Spark.")
app.add_typer(job_insight.app)


_RANGE: Final = re.compile(r"(\d+):(\d+)-(\d+)\Z")


class TableFormat(StrEnum):
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


@job_command(app)
def archive(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="What to archive.")],
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="The archive.")],
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="Of the archive's table.")
    ] = TableFormat.parquet,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Stop when all that is there now is archived.")
    ] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Between batches.")
    ] = 60.0,
    batch_records: Annotated[
        int, typer.Option("--batch-records", min=1, help="The most records of a batch.")
    ] = 2_000_000,
    file_mib: Annotated[
        int, typer.Option("--file-size", min=1, metavar="MIB", help="What files should have.")
    ] = 128,
    allow_gaps: AllowGapsOption = False,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact/--no-compact", help="Join small files now and then, and in the end."
        ),
    ] = True,
    *,
    shared: Shared,
) -> None:
    """Archive topics into Parquet by topic, date and hour; each record once.

    Goes on until it is stopped, or with --available-now up to now. Offsets are kept in the archive:
    run again, also after a crash, it goes on where it ended.
    """
    from millstream.spark.job.archiving.archive_job import ArchiveOptions
    from millstream.spark.job.archiving.archive_job import archive as run

    settings = ArchiveOptions(
        available_now=available_now,
        interval_s=interval_s,
        batch_records_max=batch_records,
        file_bytes=file_mib << 20,
        allow_gaps=allow_gaps,
        compact=compact,
    )
    shared.carry_out(
        lambda options: run(
            topics, to, table_format=table_format.value, settings=settings, **options
        )
    )


@job_command(app)
def snapshot(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to take a snapshot of.")],
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="The table.")],
    allow_gaps: AllowGapsOption = False,
    *,
    shared: Shared,
) -> None:
    """Keep the latest value of each key of a topic as a Parquet table.

    The first run reads all of the topic, later ones what is new. Records without a value remove
    their key. FOLDER/current/live=true is the table at any time.
    """
    from millstream.spark.job.snapshotting.snapshot_job import snapshot as run

    shared.carry_out(lambda options: run(topic, to, allow_gaps=allow_gaps, **options))


@job_command(app)
def replay(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to replay.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where to send it.")],
    state: Annotated[
        str, typer.Option("--state", metavar="FOLDER", help="Keeps how far the replay is.")
    ],
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="FOLDER", help="Read from this archive, not the log."),
    ] = None,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="Of the archive's table.")
    ] = TableFormat.parquet,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="PARTITION:FROM-TO", help="Only these offsets, up to TO. Repeatable."
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", help="Only of this key. Repeatable.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help="A condition on key, value, partition, offset, timestamp, headers.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, help="The most records a second.")
    ] = None,
    same_partitions: Annotated[
        bool, typer.Option("--same-partitions", help="Keep the numbers of partitions.")
    ] = False,
    new_timestamps: Annotated[
        bool, typer.Option("--new-timestamps", help="The time of sending, not the record's own.")
    ] = False,
    *,
    shared: Shared,
) -> None:
    """Send records of a topic, or of its archive, to a topic again; each once.

    Headers tell where each record was read. What is sent is fixed by the first run; after an
    interruption run the same again, and it goes on where it was.
    """
    from millstream.spark.job.replaying.replay_job import ReplayOptions
    from millstream.spark.job.replaying.replay_job import replay as run

    settings = ReplayOptions(
        archive=archive,
        table_format=table_format.value,
        ranges=dict(map(_range, ranges)) if ranges else None,
        since_ms=moment_of(since, "--since"),
        until_ms=moment_of(until, "--until"),
        relative_times=any(is_duration(text) for text in (since, until) if text is not None),
        keys=tuple(key.encode() for key in keys or ()),
        where=where,
        rate=rate,
        same_partitions=same_partitions,
        new_timestamps=new_timestamps,
    )
    shared.carry_out(lambda options: run(topic, to, state=state, settings=settings, **options))


def _range(text: str) -> tuple[int, tuple[int, int]]:
    match = _RANGE.match(text)
    if match is None:
        raise CommandError(
            ExitCode.USAGE, f"--range {text!r} is not PARTITION:FROM-TO, for example 0:100-200."
        )
    return int(match[1]), (int(match[2]), int(match[3]))
