"""Clients in a driver process: the Java client and kafkajs, over the same JSON lines.

Bytes are sent as base64, null as null. java/Driver.java and node/driver.js are the other end.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar

from clients.contract import CODECS, NULL_HEADER, DriverProcess, Record, Settings


def encode_bytes(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decode_bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def encode_record(record: Record) -> dict[str, Any]:
    return {
        "key": encode_bytes(record.key),
        "value": encode_bytes(record.value),
        "headers": [[name, encode_bytes(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
    }


def decode_record(fields: dict[str, Any]) -> Record:
    return Record(
        key=decode_bytes(fields["key"]),
        value=decode_bytes(fields["value"]),
        headers=tuple((name, decode_bytes(value)) for name, value in fields["headers"]),
        timestamp=fields["timestamp"],
        offset=fields["offset"],
    )


class LinesClient:
    """The `Client` of a driver process."""

    name: ClassVar[str]
    codecs: ClassVar[Sequence[str]] = CODECS
    lacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, process: DriverProcess) -> None:
        self._process = process

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], settings: Settings
    ) -> list[int]:
        encoded = [encode_record(record) for record in records]
        offsets: list[int] = self._process.call(
            op="produce", topic=topic, partition=partition, records=encoded, **settings._asdict()
        )
        return offsets

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        found = self._process.call(
            op="consume", topic=topic, partition=partition, offset=offset, count=count
        )
        return [decode_record(fields) for fields in found]

    def consume_from_time(
        self, topic: str, partition: int, timestamp: int, count: int
    ) -> list[Record]:
        found = self._process.call(
            op="consume", topic=topic, partition=partition, time=timestamp, count=count
        )
        return [decode_record(fields) for fields in found]

    def close(self) -> None:
        """The caller that started the process ends it."""


class JavaClient(LinesClient):
    name = "java"


class KafkajsClient(LinesClient):
    name = "kafkajs"
    lacks = frozenset({NULL_HEADER})


class LinesAdmin:
    """The `Admin` of a driver process."""

    name: ClassVar[str]
    lacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, process: DriverProcess) -> None:
        self._process = process

    def create_topic(
        self, topic: str, partitions: int, configs: dict[str, str], replicas: int = -1
    ) -> None:
        self._process.call(
            op="create_topic",
            topic=topic,
            partitions=partitions,
            configs=configs,
            replicas=replicas,
        )

    def list_topics(self) -> set[str]:
        return set(self._process.call(op="list_topics"))

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._process.call(op="describe_topic", topic=topic)
        return found

    def delete_topic(self, topic: str) -> None:
        self._process.call(op="delete_topic", topic=topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self._process.call(op="create_partitions", topic=topic, total=total)

    def describe_config(self, topic: str) -> dict[str, str]:
        found: dict[str, str] = self._process.call(op="describe_config", topic=topic)
        return found

    def alter_config(self, topic: str, configs: dict[str, str]) -> None:
        self._process.call(op="alter_config", topic=topic, configs=configs)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        low: int = self._process.call(
            op="delete_records", topic=topic, partition=partition, before=before
        )
        return low

    def describe_cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = self._process.call(op="describe_cluster")
        return found

    def describe_log_dirs(self, topic: str) -> dict[int, list[int]]:
        found = self._process.call(op="describe_log_dirs", topic=topic)
        return {int(partition): sizes for partition, sizes in found.items()}

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        offset: int = self._process.call(op="list_offset", topic=topic, partition=partition, at=at)
        return offset

    def describe_producers(self, topic: str, partition: int) -> list[dict[str, int]]:
        found: list[dict[str, int]] = self._process.call(
            op="describe_producers", topic=topic, partition=partition
        )
        return found

    def close(self) -> None:
        """The caller that started the process ends it."""


class JavaAdmin(LinesAdmin):
    name = "java"


class KafkajsAdmin(LinesAdmin):
    name = "kafkajs"
    lacks = frozenset({"describe_log_dirs", "describe_producers", "max_timestamp"})
