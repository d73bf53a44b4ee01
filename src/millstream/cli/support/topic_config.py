"""The configs of topics, as their broker describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigEntry


class Retention(NamedTuple):
    """For how long, and up to which size, a topic keeps its records; None is without a limit."""

    ms: int | None = None
    size_bytes: int | None = None


def topic_configs(
    connection: Connection,
    admin: AdminClient,
    topics: Iterable[str],
    on_failure: Callable[[CommandError], None],
) -> dict[str, dict[str, ConfigEntry]]:
    """All configs of each topic that may be looked at."""
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
    """What the configs of a topic say of it."""
    if "delete" not in str(configs["cleanup.policy"].value).split(","):
        return Retention()
    return Retention(_limit(configs, "retention.ms"), _limit(configs, "retention.bytes"))


def _limit(configs: dict[str, ConfigEntry], name: str) -> int | None:
    value = int(configs[name].value or -1)
    return value if value >= 0 else None
