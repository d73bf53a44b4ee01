"""Requests for the settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka.admin import AlterConfigOpType, ResourceType
from confluent_kafka.admin import ConfigEntry as RdKafkaConfigEntry
from confluent_kafka.admin import ConfigResource as RdKafkaConfigResource

from millstream.client.admin.handle import AdminHandle
from millstream.client.admin.result import ConfigEntry, ConfigResource, ConfigSource, Outcome
from millstream.client.error import UsageError

_TYPES: Final = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "group": ResourceType.GROUP,
}
#: The sources of settings by their codes in DescribeConfigs responses.
_SOURCES: Final = {
    1: ConfigSource.TOPIC,
    2: ConfigSource.BROKER,
    3: ConfigSource.ALL_BROKERS,
    4: ConfigSource.BROKER_FILE,
    5: ConfigSource.DEFAULT,
    8: ConfigSource.GROUP,
}


def describe_configs(
    handle: AdminHandle, resources: Iterable[ConfigResource], timeout: float
) -> dict[ConfigResource, Outcome[dict[str, ConfigEntry]]]:
    asked = {_row(each): each for each in dict.fromkeys(resources)}
    if not asked:
        return {}
    futures = handle.client.describe_configs(list(asked), request_timeout=timeout)
    return handle.outcomes(
        _by_resource(asked, futures),
        lambda each: f"Reading the settings of {each}",
        timeout,
        _entries,
    )


def alter_configs(
    handle: AdminHandle,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    timeout: float,
    *,
    validate_only: bool,
) -> dict[ConfigResource, Outcome[None]]:
    asked = {_row(each, values): each for each, values in changes.items() if values}
    if not asked:
        return {}
    futures = handle.client.incremental_alter_configs(
        list(asked), request_timeout=timeout, validate_only=validate_only
    )
    return handle.outcomes(
        _by_resource(asked, futures),
        lambda each: f"Changing the settings of {each}",
        timeout,
        lambda _: None,
    )


def _row(
    resource: ConfigResource, changes: Mapping[str, str | None] | None = None
) -> RdKafkaConfigResource:
    if not isinstance(resource, ConfigResource) or resource.kind not in _TYPES:
        raise UsageError(
            f"{resource!r} is not a resource: use ConfigResource.topic('orders'), .broker(1) or"
            " .group('billing')."
        )
    entries = [
        RdKafkaConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for name, value in (changes or {}).items()
    ]
    kind, name = _TYPES[resource.kind], resource.name
    if changes is None:
        return RdKafkaConfigResource(kind, name)
    return RdKafkaConfigResource(kind, name, incremental_configs=entries)


def _by_resource(
    asked: Mapping[RdKafkaConfigResource, ConfigResource],
    futures: Mapping[RdKafkaConfigResource, Future[Any]],
) -> dict[ConfigResource, Future[Any]]:
    return {asked[row]: future for row, future in futures.items()}


def _entries(found: Mapping[str, Any]) -> dict[str, ConfigEntry]:
    return {
        name: ConfigEntry(
            name=name,
            value=entry.value,
            source=_SOURCES.get(
                int(getattr(entry.source, "value", entry.source)), ConfigSource.UNKNOWN
            ),
            is_read_only=bool(entry.is_read_only),
            is_sensitive=bool(entry.is_sensitive),
        )
        for name, entry in sorted(found.items())
    }
