"""`millstream job`: archive, replay and snapshot whole topics with Spark.

The read-only commands are in `job_insight.py`.
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
from millstream.cli.support.completion import complete_topics
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.option import FollowOption
from millstream.cli.support.position import is_duration
from millstream.cli.support.quantity import (
    Duration,
    Rate,
    Size,
    duration_option,
    rate_option,
    size_option,
)

app = typer.Typer(no_args_is_help=True, help="Archive, replay and analyse whole topics with Spark.")
app.add_typer(job_insight.app)

_INTERVAL: Final = Duration.parse("1m")
_FILE_SIZE: Final = Size.parse("128MiB")
_RANGE: Final = re.compile(r"(\d+):(\d+)-(\d+)\Z")


class TableFormat(StrEnum):
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


@job_command(app)
def archive(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="The topics to archive.", autocompletion=complete_topics
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="The archive's folder.")],
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="Format of the archive's table.")
    ] = TableFormat.parquet,
    follow: FollowOption = True,
    interval: Annotated[
        Duration, duration_option("--interval", minimum="100ms", help="Time between batches.")
    ] = _INTERVAL,
    batch_records: Annotated[
        int, typer.Option("--batch-records", min=1, help="At most this many records per batch.")
    ] = 2_000_000,
    file_size: Annotated[
        Size, size_option("--file-size", minimum="1MiB", help="Target size of files.")
    ] = _FILE_SIZE,
    allow_gaps: AllowGapsOption = False,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact/--no-compact", help="Merge small files from time to time and at the end."
        ),
    ] = True,
    *,
    shared: Shared,
) -> None:
    """Archive topics into a table by topic, date and hour; each record once.

    It runs until it is stopped, or with --no-follow up to the current end. The archive holds
    the offsets: another run, also after a crash, continues where the last one ended.
    """
    from millstream.spark.job.archiving.archive_job import ArchiveOptions
    from millstream.spark.job.archiving.archive_job import archive as run

    settings = ArchiveOptions(
        available_now=not follow,
        interval_s=interval,
        batch_records_max=batch_records,
        file_bytes=file_size,
        allow_gaps=allow_gaps,
        compact=compact,
    )
    shared.run_job(
        lambda options: run(
            topics, to, table_format=table_format.value, settings=settings, **options
        )
    )


@job_command(app)
def snapshot(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topics)
    ],
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="The table's folder.")],
    allow_gaps: AllowGapsOption = False,
    *,
    shared: Shared,
) -> None:
    """Write the latest value of each key of a topic to a Parquet table.

    The first run reads the whole topic, later runs only new records. A record without a value
    removes its key. FOLDER/current/live=true is always the current table.
    """
    from millstream.spark.job.snapshotting.snapshot_job import snapshot as run

    shared.run_job(lambda options: run(topic, to, allow_gaps=allow_gaps, **options))


@job_command(app)
def replay(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The topic to replay.", autocompletion=complete_topics
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TOPIC", help="The topic to send to.", autocompletion=complete_topics
        ),
    ],
    state: Annotated[
        str,
        typer.Option("--state", metavar="FOLDER", help="Folder for the progress of the replay."),
    ],
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive", metavar="FOLDER", help="Read from this archive instead of the topic."
        ),
    ] = None,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="Format of the archive's table.")
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
        list[str] | None, typer.Option("--key", help="Only records with this key. Repeatable.")
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
        Rate | None,
        rate_option("--rate", minimum="0.1/s", help="Send at most this many records: 1000/s."),
    ] = None,
    same_partitions: Annotated[
        bool, typer.Option("--same-partitions", help="Keep each record's partition.")
    ] = False,
    new_timestamps: Annotated[
        bool,
        typer.Option(
            "--new-timestamps", help="Use the send time instead of the record's timestamp."
        ),
    ] = False,
    *,
    shared: Shared,
) -> None:
    """Send records of a topic or its archive to a topic; each once.

    Headers hold the origin of each record. The first run fixes the set of records. After an
    interruption, run the same command again to continue.
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
    shared.run_job(lambda options: run(topic, to, state=state, settings=settings, **options))


def _range(text: str) -> tuple[int, tuple[int, int]]:
    match = _RANGE.match(text)
    if match is None:
        raise CommandError(
            ExitCode.USAGE, f"--range {text!r} is not PARTITION:FROM-TO, for example 0:100-200."
        )
    return int(match[1]), (int(match[2]), int(match[3]))
