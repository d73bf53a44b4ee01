"""Requests for the settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka.admin import AlterConfigOpType, ResourceType
from confluent_kafka.admin import ConfigEntry as RdKafkaConfigEntry
from confluent_kafka.admin import ConfigResource as RdKafkaConfigResource

from millstream.client.admin.handle import AdminHandle, outcome_of
from millstream.client.admin.result import ConfigEntry, ConfigResource, ConfigSource, Outcome
from millstream.client.error import MillstreamError, UsageError

#: librdkafka cannot name this resource: it rejects an empty name.
_ALL_BROKERS: Final = ConfigResource.broker()
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
    wanted = list(dict.fromkeys(resources))
    asked = {_row(each): each for each in wanted if each != _ALL_BROKERS}
    found: dict[ConfigResource, Outcome[dict[str, ConfigEntry]]] = {}
    if asked:
        futures = handle.client.describe_configs(list(asked), request_timeout=timeout)
        what = "Reading the settings of {}".format
        found = handle.outcomes(_by_resource(asked, futures), what, timeout, _entries)
    if _ALL_BROKERS in wanted:
        found[_ALL_BROKERS] = _of_all_brokers(handle, timeout)
    return found


def alter_configs(
    handle: AdminHandle,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    timeout: float,
    *,
    validate_only: bool,
) -> dict[ConfigResource, Outcome[None]]:
    given = {each: values for each, values in changes.items() if values}
    for values in given.values():
        check_texts(values)
    asked = {_row(each, values): each for each, values in given.items() if each != _ALL_BROKERS}
    found: dict[ConfigResource, Outcome[None]] = {}
    if asked:
        futures = handle.client.incremental_alter_configs(
            list(asked), request_timeout=timeout, validate_only=validate_only
        )
        what = "Changing the settings of {}".format
        found = handle.outcomes(_by_resource(asked, futures), what, timeout, lambda _: None)
    if _ALL_BROKERS in given:
        from millstream.client.admin.protocol_request import alter_all_brokers

        found[_ALL_BROKERS] = outcome_of(
            lambda: alter_all_brokers(
                handle, given[_ALL_BROKERS], timeout, validate_only=validate_only
            )
        )
    return found


def check_texts(values: Mapping[str, object]) -> None:
    """Raise UsageError if the value of a setting is neither a string nor None."""
    for name, value in values.items():
        if not isinstance(value, str | None):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            raise UsageError(f"The value of {name} is {value!r}: pass a string, {text!r}.")


def _of_all_brokers(handle: AdminHandle, timeout: float) -> Outcome[dict[str, ConfigEntry]]:
    from millstream.client.admin.protocol_request import describe_all_brokers

    rows = outcome_of(lambda: describe_all_brokers(handle, timeout))
    if isinstance(rows, MillstreamError):
        return rows
    return {
        row.name: ConfigEntry(
            name=row.name,
            value=row.value,
            source=_SOURCES.get(row.config_source, ConfigSource.UNKNOWN),
            is_read_only=row.read_only,
            is_sensitive=row.is_sensitive,
        )
        for row in sorted(rows, key=lambda row: row.name)
    }


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
