"""`millstream cluster elect`: elect leaders on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.outcome import confirm, report
from millstream.cli.support.terminal import JsonOption
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_UNCLEAN_HELP = (
    "If no in-sync replica is alive, elect one that may lack acknowledged records. These are lost,"
    " even if a replica that has them comes back later."
)


@guarded
def elect(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition. May be repeated."),
    ] = None,
    unclean: Annotated[bool, typer.Option("--unclean", help=_UNCLEAN_HELP)] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Elect the preferred replicas of a topic as leaders, or with --unclean any live replica.

    A partition that needs no election stays unchanged."""
    connection = Connection(servers, properties, timeout)
    admin = connection.reach()[0]
    numbers = partition or _partitions(connection, admin, topic)
    if unclean and not yes:
        question = f"Let replicas of {topic} lead that may lack acknowledged records?"
        confirm(question, "an unclean election", "nothing was elected.")
    outcomes = _elect(connection, admin, topic, numbers, unclean)
    report("partition", outcomes, "elected", {}, as_json=as_json)


def _partitions(connection: Connection, admin: AdminClient, topic: str) -> list[int]:
    found = connection.metadata(admin, topic).topics.get(topic)
    if found is None or not found.partitions:
        raise CommandError(ExitCode.NOT_FOUND, f"topic {topic!r} does not exist.")
    return sorted(found.partitions)


def _elect(
    connection: Connection, admin: AdminClient, topic: str, numbers: list[int], unclean: bool
) -> dict[str, CommandError | str | None]:
    from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition

    future = admin.elect_leaders(
        ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED,
        [TopicPartition(topic, number) for number in numbers],
    )
    try:
        # librdkafka fails on every request timeout here, so the future gets the timeout.
        found = future.result(connection.timeout_s)
    except TimeoutError:
        raise CommandError(
            ExitCode.NO_CONNECTION,
            f"no election of topic {topic!r} within {connection.timeout_s:g} s.",
        ) from None
    except KafkaException as exception:
        what = f"cannot elect leaders of topic {topic!r}"
        raise connection.failure(exception, what, topic) from None
    outcomes: dict[str, CommandError | str | None] = {}
    for each, failure in sorted(found.items(), key=lambda pair: pair[0].partition):
        name = f"{each.topic}-{each.partition}"
        if failure is None:
            outcomes[name] = None
        elif failure.code() == KafkaError.ELECTION_NOT_NEEDED:
            outcomes[name] = "not needed"
        else:
            outcomes[name] = connection.failure(
                KafkaException(failure), f"cannot elect a leader of {name}", topic
            )
    return outcomes
