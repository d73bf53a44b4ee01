"""The configs of topics, by DescribeConfigs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigEntry


class Retention(NamedTuple):
    """The limits of a topic's retention by time and size; None means no limit."""

    ms: int | None = None
    size_bytes: int | None = None


def topic_configs(
    connection: Connection,
    admin: AdminClient,
    topics: Iterable[str],
    on_failure: Callable[[CommandError], None],
) -> dict[str, dict[str, ConfigEntry]]:
    """Return all configs of each topic. Topics that cannot be described go to `on_failure`."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    if not resources:
        return {}
    futures = admin.describe_configs(resources, request_timeout=connection.timeout_s)
    found: dict[str, dict[str, ConfigEntry]] = {}
    for resource, future in futures.items():
        try:
            found[resource.name] = future.result()
        except KafkaException as exception:
            what = f"cannot read the configs of {resource.name!r}"
            on_failure(connection.failure(exception, what))
    return found


def retention_of(configs: dict[str, ConfigEntry]) -> Retention:
    """Return the retention in the configs of a topic."""
    if "delete" not in str(configs["cleanup.policy"].value).split(","):
        return Retention()
    return Retention(_limit(configs, "retention.ms"), _limit(configs, "retention.bytes"))


def _limit(configs: dict[str, ConfigEntry], name: str) -> int | None:
    value = int(configs[name].value or -1)
    return value if value >= 0 else None
