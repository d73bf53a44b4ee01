"""Topics and groups, as an application manages them. Each call waits for its response."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Self, Unpack

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from millstream.client.connection import ConnectionOptions, ConnectionSettings
from millstream.client.connection_error import ConnectionErrors, with_errors
from millstream.client.error import (
    BrokerError,
    ClosedError,
    from_kafka,
    is_existing,
    settings_error,
    translated,
)
from millstream.client.record import Partition

_logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0


class _AdminSettings(ConnectionSettings):
    arguments: ClassVar[tuple[str, ...]] = ("bootstrap_servers", "timeout")


class Topic(NamedTuple):
    """A topic with its partition count and its lowest replication factor."""

    name: str
    partitions: int
    replication_factor: int


class Admin:
    """Manages topics and groups.

    >>> with Admin() as admin:
    ...     admin.create_topic("fruit", partitions=3, config={"retention.ms": "3600000"})
    ...     print(admin.topic("fruit"))
    ...     print(admin.topic_config("fruit")["retention.ms"])
    ...     admin.delete_topic("fruit")
    True
    Topic(name='fruit', partitions=3, replication_factor=1)
    3600000
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        timeout: float = TIMEOUT_S,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self._timeout_s = timeout
        settings = _AdminSettings.of(options)
        properties = settings.connection_properties(bootstrap_servers) | dict(settings.config)
        self._errors = ConnectionErrors()
        try:
            self._client: AdminClient | None = AdminClient(
                with_errors(properties, self._errors), logger=_logger
            )
        except KafkaException as error:
            raise settings_error(error, "admin client") from error
        client = self._client
        self._errors.serve = lambda: client.poll(0)

    # Topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        if_missing: bool = False,
    ) -> bool:
        """Create a topic; -1 leaves a number to the broker.

        With `if_missing` an existing topic stays as it is, and the call returns False.
        """
        row = NewTopic(name, partitions, replication_factor, config=dict(config or {}))
        created = self._open().create_topics([row], operation_timeout=self._timeout_s)
        try:
            self._wait(created[name], f"Creating topic {name!r}")
        except BrokerError as error:
            if if_missing and is_existing(error.code):
                return False
            raise
        return True

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        deleted = self._open().delete_topics([name], operation_timeout=self._timeout_s)
        self._wait(deleted[name], f"Deleting topic {name!r}")

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total`. Keys may move to other partitions."""
        rows = [NewPartitions(name, total)]
        added = self._open().create_partitions(rows, operation_timeout=self._timeout_s)
        self._wait(added[name], f"Adding partitions to topic {name!r}")

    def topics(self) -> list[str]:
        """Return the names of all topics except the brokers' internal ones."""
        return sorted(topic for topic in self._metadata(None).topics if not topic.startswith("__"))

    def topic(self, name: str) -> Topic:
        """Return a topic's partition count and replication factor."""
        found = self._metadata(name).topics[name]
        if found.error is not None:
            raise from_kafka(found.error, f"Describing topic {name!r}")
        replicas = min((len(each.replicas) for each in found.partitions.values()), default=0)
        return Topic(name, len(found.partitions), replicas)

    def topic_config(self, name: str) -> dict[str, str]:
        """Return all settings of a topic that are in force."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        found = self._open().describe_configs([resource], request_timeout=self._timeout_s)
        entries = self._wait(found[resource], f"Asking for the settings of topic {name!r}")
        return {key: entry.value for key, entry in entries.items()}

    def alter_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Change these settings and no others. None resets a setting to its default."""
        entries = [
            ConfigEntry(
                key,
                value or "",
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        done = self._open().incremental_alter_configs([resource], request_timeout=self._timeout_s)
        self._wait(done[resource], f"Changing the settings of topic {name!r}")

    def offsets(self, topic: str, *, end: bool = True) -> dict[Partition, int]:
        """Return the end offset of each partition, or its start offset."""
        spec = OffsetSpec.latest() if end else OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        rows = {
            TopicPartition(topic, n): spec for n in self._metadata(topic).topics[topic].partitions
        }
        found = self._open().list_offsets(rows, request_timeout=self._timeout_s)
        what = f"Asking for the offsets of topic {topic!r}"
        return {
            Partition(row.topic, row.partition): self._wait(response, what).offset
            for row, response in found.items()
        }

    # Groups

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        listed = self._open().list_consumer_groups(request_timeout=self._timeout_s)
        return sorted(each.group_id for each in self._wait(listed, "Asking for groups").valid)

    def group_offsets(self, group_id: str) -> dict[Partition, int]:
        """Return a group's committed offsets."""
        asked = [ConsumerGroupTopicPartitions(group_id)]
        found = self._open().list_consumer_group_offsets(asked, request_timeout=self._timeout_s)
        rows = self._wait(found[group_id], f"Asking for the offsets of group {group_id!r}")
        return {
            Partition(row.topic, row.partition): row.offset
            for row in rows.topic_partitions
            if row.offset >= 0
        }

    def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        deleted = self._open().delete_consumer_groups([group_id], request_timeout=self._timeout_s)
        self._wait(deleted[group_id], f"Deleting group {group_id!r}")

    def close(self) -> None:
        """Close the client. Further calls raise ClosedError."""
        self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> AdminClient:
        if self._client is None:
            raise ClosedError("The admin client is closed: create another one.")
        return self._client

    def _metadata(self, topic: str | None) -> Any:
        client = self._open()
        with self._errors.explaining(), translated("Asking for topics"):
            if topic is None:
                return client.list_topics(timeout=self._timeout_s)
            return client.list_topics(topic, timeout=self._timeout_s)

    def _wait(self, response: Future[Any], what: str) -> Any:
        with self._errors.explaining(), translated(what):
            return response.result(self._timeout_s * 2)
