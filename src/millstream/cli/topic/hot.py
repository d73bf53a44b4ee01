"""`millstream topic hot`: the keys and partitions with more than an even share of a topic."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import guarded
from millstream.cli.support.message import put_bytes
from millstream.cli.support.position import parse_moment_option
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import Duration, duration_option
from millstream.cli.support.reading import Reading, Start
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.cli.topic.skew import KeyLoad, KeyTally, PartitionLoad

#: The number of keys counted: the error of a share is at most 1/2000.
_CAPACITY: Final = 2000
_TIME_MAX: Final = Duration.parse("30s")


class Measure(StrEnum):
    records = "records"
    bytes = "bytes"


@guarded
def hot(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only newer records: 10m, 2h, a date."),
    ] = None,
    records_max: Annotated[
        int,
        typer.Option(
            "--max-records", "-n", min=1, help="Read about this many of the newest records."
        ),
    ] = 100_000,
    time_max: Annotated[
        Duration, duration_option("--max-time", minimum="100ms", help="Read for at most this long.")
    ] = _TIME_MAX,
    top: Annotated[
        int, typer.Option("--top", min=1, max=_CAPACITY, help="Number of keys to show.")
    ] = 10,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold", min=0.0, max=1.0, help="A key with at least this share is hot."
        ),
    ] = 0.05,
    measure: Annotated[
        Measure,
        typer.Option(
            "--by", help="Unit of a key's share. Partitions are always compared by records."
        ),
    ] = Measure.records,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Find hot partitions by their offsets, and hot keys in a sample of the newest records.

    A key's true share of the sample lies between the two shown shares.
    """
    from millstream.cli.topic.skew import KeyTally, partition_loads, sample_starts

    start = Start(
        since is None, None, None if since is None else parse_moment_option(since, "--since")
    )
    connection = Connection(servers, properties, timeout)
    # Aborted records are load too.
    reading = Reading(connection, topic, read_committed=False)
    tally = KeyTally(_CAPACITY, by_bytes=measure is Measure.bytes)
    try:
        ranges = reading.locate(None, start)
        reading.begin(sample_starts(ranges, records_max))
        with progress("reading the sample", total=reading.total) as shown:
            for batch in reading.sample(time_max):
                shown.update(reading.count)
                for message in batch:
                    tally.add(message)
    finally:
        reading.close()
    report = _report(topic, partition_loads(ranges), tally, tally.top(top), threshold)
    report["sample"]["complete"] = reading.is_complete
    if as_json:
        print_json(report)
    else:
        _print(report)


def _report(
    topic: str,
    partitions: list[PartitionLoad],
    tally: KeyTally,
    keys: list[KeyLoad],
    threshold: float,
) -> dict[str, Any]:
    return {
        "topic": topic,
        "records": sum(load.records for load in partitions),
        "sample": {
            "records": tally.records,
            "share_error": tally.error_share,
            "share_without_key": tally.keyless_share,
        },
        "partitions": [
            {
                "partition": load.partition,
                "records": load.records,
                "share": load.share,
                "ratio": load.ratio,
                "hot": load.is_hot,
            }
            for load in partitions
        ],
        "keys": [
            put_bytes({}, "key", load.key)
            | {
                "share_min": load.at_least,
                "share_max": load.at_most,
                "partitions": load.partitions,
                "hot": load.at_least >= threshold,
            }
            for load in keys
        ],
    }


def _print(report: dict[str, Any]) -> None:
    sample = report["sample"]
    typer.secho(report["topic"], bold=True, nl=False)
    typer.echo(
        f"  {counted(report['records'], 'record')},"
        f" keys in a sample of {counted(sample['records'], 'record')}"
        f" (error at most {sample['share_error']:.2%}, {sample['share_without_key']:.1%} without"
        " key)\n"
    )
    print_table(
        ["PARTITION", "RECORDS", "SHARE", "TIMES EVEN", ""],
        [
            (
                row["partition"],
                row["records"],
                f"{row['share']:.1%}",
                f"{row['ratio']:.2f}",
                "hot" if row["hot"] else "",
            )
            for row in report["partitions"]
        ],
        right=("PARTITION", "RECORDS", "SHARE", "TIMES EVEN"),
    )
    if report["keys"]:
        typer.echo()
        print_table(
            ["KEY", "AT LEAST", "AT MOST", "PARTITIONS", ""],
            [
                (
                    row["key"] if "key" in row else f"base64:{row['key_base64']}",
                    f"{row['share_min']:.2%}",
                    f"{row['share_max']:.2%}",
                    ",".join(map(str, row["partitions"])),
                    "hot" if row["hot"] else "",
                )
                for row in report["keys"]
            ],
            right=("AT LEAST", "AT MOST"),
        )
    if not sample["complete"]:
        note("--max-time ended before the sample was read: errors of shares may be larger.")
