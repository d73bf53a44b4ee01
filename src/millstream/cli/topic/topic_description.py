"""`millstream topic describe`: the partitions and configs of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

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
    from confluent_kafka.admin import AdminClient, TopicDescription

#: The names of config sources by their DescribeConfigs codes.
_SOURCES: Final = {
    1: "topic",
    2: "broker, at run time",
    3: "all brokers, at run time",
    4: "broker's file",
    5: "default",
    6: "broker's logger",
}


@guarded
def describe(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
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
    admin, _ = connection.reach()
    found = _describe_topics(connection, admin, list(dict.fromkeys(topics)))
    offsets = _offsets(connection, admin, found)
    described = [
        _as_dict(topic, offsets, _configs(connection, admin, topic.name, all_configs))
        for topic in found
    ]
    if as_json:
        print_json(described)
        return
    for number, topic_row in enumerate(described):
        if number:
            typer.echo()
        _print_topic(topic_row)


def _describe_topics(
    connection: Connection, admin: AdminClient, names: list[str]
) -> list[TopicDescription]:
    from confluent_kafka import KafkaException, TopicCollection

    found = []
    futures = admin.describe_topics(TopicCollection(names), request_timeout=connection.timeout_s)
    for name, future in futures.items():
        try:
            found.append(future.result())
        except KafkaException as exception:
            raise connection.failure(exception, f"cannot describe {name!r}", name) from None
    return found


def _offsets(
    connection: Connection, admin: AdminClient, topics: Iterable[TopicDescription]
) -> dict[tuple[str, int], tuple[int | None, int | None]]:
    """Return the start and end offset of each partition; None if its leader does not respond."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    keys = [(topic.name, partition.id) for topic in topics for partition in topic.partitions]
    results: list[dict[tuple[str, int], int | None]] = []
    specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
    for spec in specs:
        futures = admin.list_offsets(
            {TopicPartition(*key): spec for key in keys}, request_timeout=connection.timeout_s
        )
        result: dict[tuple[str, int], int | None] = {}
        for partition, future in futures.items():
            try:
                result[partition.topic, partition.partition] = future.result().offset
            except KafkaException:
                # A partition without a leader has no offsets; the table shows a dash.
                result[partition.topic, partition.partition] = None
        results.append(result)
    return {key: (results[0].get(key), results[1].get(key)) for key in keys}


def _configs(
    connection: Connection, admin: AdminClient, topic: str, all_configs: bool
) -> dict[str, dict[str, str | None]]:
    from confluent_kafka.admin import ConfigSource

    entries = topic_configs(connection, admin, [topic], raise_failure)[topic]
    return {
        name: {
            "value": entry.value,
            "source": _SOURCES.get(ConfigSource(entry.source).value, "unknown"),
        }
        for name, entry in sorted(entries.items())
        if all_configs or not entry.is_default
    }


def _as_dict(
    topic: TopicDescription,
    offsets: dict[tuple[str, int], tuple[int | None, int | None]],
    configs: dict[str, dict[str, str | None]],
) -> dict[str, Any]:
    partitions = []
    for partition in topic.partitions:
        start, end = offsets[topic.name, partition.id]
        partitions.append(
            {
                "partition": partition.id,
                "leader": partition.leader.id if partition.leader else None,
                "replicas": [node.id for node in partition.replicas],
                "isr": [node.id for node in partition.isr],
                "start_offset": start,
                "end_offset": end,
            }
        )
    return {
        "topic": topic.name,
        # librdkafka writes ids in plain base64, Kafka's tools in URL-safe base64.
        "topic_id": str(topic.topic_id).replace("+", "-").replace("/", "_"),
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
    headings = ["PARTITION", "LEADER", "REPLICAS", "IN SYNC", "START", "END", "OFFSETS"]
    rows = [_partition_cells(row) for row in partitions]
    print_table(headings, rows, right=("PARTITION", "LEADER", "START", "END", "OFFSETS"))
    if topic["configs"]:
        typer.echo()
        cells = [[name, row["value"], row["source"]] for name, row in topic["configs"].items()]
        print_table(["CONFIG", "VALUE", "SET BY"], cells)


def _partition_cells(row: dict[str, Any]) -> list[object]:
    start, end = row["start_offset"], row["end_offset"]
    return [
        row["partition"],
        "none" if row["leader"] is None else row["leader"],
        ",".join(map(str, row["replicas"])),
        ",".join(map(str, row["isr"])) or "none",
        "-" if start is None else start,
        "-" if end is None else end,
        "-" if start is None or end is None else end - start,
    ]
