"""The retention in a topic's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError

if TYPE_CHECKING:
    from millstream.client.admin import Admin, ConfigEntry


class Retention(NamedTuple):
    """The limits of a topic's retention by time and size; None means no limit."""

    ms: int | None = None
    size_bytes: int | None = None


def topic_configs(
    connection: Connection,
    admin: Admin,
    topics: Iterable[str],
    on_failure: Callable[[CommandError], None],
) -> dict[str, dict[str, ConfigEntry]]:
    """Return all settings of each topic. Topics that cannot be described go to `on_failure`."""
    from millstream.client.admin import ConfigResource

    found: dict[str, dict[str, ConfigEntry]] = {}
    resources = [ConfigResource.topic(topic) for topic in topics]
    for resource, entries in admin.describe_configs(resources).items():
        if isinstance(entries, Exception):
            on_failure(connection.failure(entries))
        else:
            found[resource.name] = entries
    return found


def retention_of(configs: Mapping[str, ConfigEntry]) -> Retention:
    """Return the retention in the settings of a topic."""
    if "delete" not in str(configs["cleanup.policy"].value).split(","):
        return Retention()
    return Retention(_limit(configs, "retention.ms"), _limit(configs, "retention.bytes"))


def _limit(configs: Mapping[str, ConfigEntry], name: str) -> int | None:
    value = int(configs[name].value or -1)
    return value if value >= 0 else None
