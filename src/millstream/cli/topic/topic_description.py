"""`millstream topic describe`: the partitions and configs of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import guarded, raise_failure
from millstream.cli.support.terminal import JsonOption, counted, print_json, print_table
from millstream.cli.support.topic_config import topic_configs
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin, ConfigEntry, Outcome, TopicDescription
    from millstream.client.record import Partition

#: The start and the end offset of a partition, as far as they are known.
Offsets: TypeAlias = tuple[int | None, int | None]


@guarded
def describe(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics)
    ],
    all_configs: Annotated[
        bool, typer.Option("--all-configs", "-a", help="Also show configs with their default.")
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show topics: partitions, leaders, in-sync replicas, offsets and configs."""
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        admin = connection.open_admin()
        found = _describe_topics(connection, admin, list(dict.fromkeys(topics)))
        offsets = _offsets(admin, found)
    configs = topic_configs(connection, admin, [topic.name for topic in found], raise_failure)
    described = [
        _as_dict(topic, offsets, _shown(configs[topic.name], all_configs)) for topic in found
    ]
    if as_json:
        print_json(described)
        return
    for number, topic_row in enumerate(described):
        if number:
            typer.echo()
        _print_topic(topic_row)


def _describe_topics(
    connection: Connection, admin: Admin, names: list[str]
) -> list[TopicDescription]:
    found = []
    for name, topic in admin.describe_topics(names).items():
        if isinstance(topic, Exception):
            raise connection.failure(topic, topic=name)
        found.append(topic)
    return found


def _offsets(admin: Admin, topics: Iterable[TopicDescription]) -> dict[Partition, Offsets]:
    """Return the start and end offset of each partition; None if its leader does not respond."""
    from millstream.client.record import Partition

    partitions = [
        Partition(topic.name, each.partition) for topic in topics for each in topic.partitions
    ]
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    return {each: (_known(starts[each]), _known(ends[each])) for each in partitions}


def _known(offset: Outcome[int]) -> int | None:
    """Return the offset. A partition without a leader has none; the table shows a dash."""
    return offset if isinstance(offset, int) else None


def _shown(
    entries: Mapping[str, ConfigEntry], all_configs: bool
) -> dict[str, dict[str, str | None]]:
    return {
        name: {"value": entry.value, "source": str(entry.source)}
        for name, entry in entries.items()
        if all_configs or not entry.is_default
    }


def _as_dict(
    topic: TopicDescription,
    offsets: Mapping[Partition, Offsets],
    configs: dict[str, dict[str, str | None]],
) -> dict[str, Any]:
    from millstream.client.record import Partition

    partitions = []
    for each in topic.partitions:
        start, end = offsets[Partition(topic.name, each.partition)]
        partitions.append(
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "elr": None if each.elr is None else list(each.elr),
                "start_offset": start,
                "end_offset": end,
            }
        )
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "internal": topic.is_internal,
        "partitions": partitions,
        "configs": configs,
    }


def _print_topic(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    counts = [
        row["end_offset"] - row["start_offset"]
        for row in partitions
        if row["start_offset"] is not None and row["end_offset"] is not None
    ]
    typer.secho(topic["topic"], bold=True, nl=False)
    internal = ", internal" if topic["internal"] else ""
    typer.echo(
        f"  id {topic['topic_id']}, {counted(len(partitions), 'partition')},"
        f" {counted(sum(counts), 'offset')} in the log{internal}"
    )
    typer.echo()
    # Eligible leaders outside of the in-sync replicas are rare, and so is their column.
    with_elr = any(row["elr"] for row in partitions)
    headings = ["PARTITION", "LEADER", "REPLICAS", "IN SYNC"]
    headings += ["ELIGIBLE"] if with_elr else []
    headings += ["START", "END", "OFFSETS"]
    rows = [_partition_cells(row, with_elr) for row in partitions]
    print_table(headings, rows, right=("PARTITION", "LEADER", "START", "END", "OFFSETS"))
    if topic["configs"]:
        typer.echo()
        cells = [[name, row["value"], row["source"]] for name, row in topic["configs"].items()]
        print_table(["CONFIG", "VALUE", "SET BY"], cells)


def _partition_cells(row: dict[str, Any], with_elr: bool) -> list[object]:
    start, end = row["start_offset"], row["end_offset"]
    return [
        row["partition"],
        "none" if row["leader"] is None else row["leader"],
        ",".join(map(str, row["replicas"])),
        ",".join(map(str, row["isr"])) or "none",
        *([",".join(map(str, row["elr"] or ())) or "none"] if with_elr else []),
        "-" if start is None else start,
        "-" if end is None else end,
        "-" if start is None or end is None else end - start,
    ]
