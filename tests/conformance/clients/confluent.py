"""confluent-kafka (librdkafka), with its AdminClient."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import confluent_kafka as ck
from clients.contract import (
    CODECS,
    FETCH_WAIT_MS,
    MESSAGE_BYTES_MAX,
    WAIT_SECONDS_MAX,
    Record,
    Settings,
)
from confluent_kafka import admin as ck_admin


def to_record(message: Any) -> Record:
    return Record(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp=message.timestamp()[1],
        offset=message.offset(),
    )


class ConfluentClient:
    name: ClassVar[str] = "confluent"
    codecs: ClassVar[Sequence[str]] = CODECS
    lacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producers: dict[Settings, Any] = {}

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], settings: Settings
    ) -> list[int]:
        producer = self._producers.get(settings) or self._new_producer(settings)
        offsets: list[int] = []
        failures: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)
            offset = message.offset()
            offsets.append(-1 if offset is None or offset < 0 else offset)

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                headers=list(record.headers),
                timestamp=record.timestamp or 0,
                on_delivery=delivered,
            )
        assert producer.flush(WAIT_SECONDS_MAX) == 0
        assert not failures, failures
        return offsets

    def _new_producer(self, settings: Settings) -> Any:
        chosen = {}
        if settings.idempotent is not None:
            chosen["enable.idempotence"] = settings.idempotent
        producer = ck.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": settings.codec,
                "acks": settings.acks,
                "message.max.bytes": MESSAGE_BYTES_MAX,
                **chosen,
            }
        )
        self._producers[settings] = producer
        return producer

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        consumer = self._new_consumer()
        try:
            consumer.assign([ck.TopicPartition(topic, partition, offset)])
            return self._read(consumer, count)
        finally:
            consumer.close()

    def consume_from_time(
        self, topic: str, partition: int, timestamp: int, count: int
    ) -> list[Record]:
        wanted = [ck.TopicPartition(topic, partition, timestamp)]
        consumer = self._new_consumer()
        found = consumer.offsets_for_times(wanted, WAIT_SECONDS_MAX)
        consumer.close()
        return self.consume(topic, partition, found[0].offset, count)

    def _new_consumer(self) -> Any:
        # A new consumer for each read: with a new topic, an old one waits a second for metadata.
        return ck.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
            }
        )

    @staticmethod
    def _read(consumer: Any, count: int) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(records) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                records.append(to_record(message))
        return records

    def close(self) -> None:
        self._producers.clear()


class ConfluentAdmin:
    name: ClassVar[str] = "confluent"
    lacks: ClassVar[frozenset[str]] = frozenset({"describe_log_dirs", "describe_producers"})

    def __init__(self, bootstrap: str) -> None:
        self._admin = ck_admin.AdminClient({"bootstrap.servers": bootstrap})

    @staticmethod
    def _only(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(WAIT_SECONDS_MAX)

    def create_topic(
        self, topic: str, partitions: int, configs: dict[str, str], replicas: int = -1
    ) -> None:
        new = ck_admin.NewTopic(topic, partitions, replicas, config=configs)
        self._only(self._admin.create_topics([new]))

    def list_topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=WAIT_SECONDS_MAX).topics)

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        wanted = ck.TopicCollection([topic])
        found = self._only(self._admin.describe_topics(wanted))
        return [
            {
                "partition": partition.id,
                "leader": partition.leader.id,
                "replicas": [node.id for node in partition.replicas],
                "isr": [node.id for node in partition.isr],
            }
            for partition in found.partitions
        ]

    def delete_topic(self, topic: str) -> None:
        self._only(self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        self._only(self._admin.create_partitions([ck_admin.NewPartitions(topic, total)]))

    def describe_config(self, topic: str) -> dict[str, str]:
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, topic)
        found = self._only(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in found.items()}

    def alter_config(self, topic: str, configs: dict[str, str]) -> None:
        entries = [
            ck_admin.ConfigEntry(name, value, incremental_operation=ck_admin.AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ck_admin.ConfigResource(
            ck_admin.ResourceType.TOPIC, topic, incremental_configs=entries
        )
        self._only(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = ck.TopicPartition(topic, partition, before)
        low: int = self._only(self._admin.delete_records([wanted])).low_watermark
        return low

    def describe_cluster(self) -> dict[str, Any]:
        found = self._admin.describe_cluster().result(WAIT_SECONDS_MAX)
        return {
            "cluster_id": found.cluster_id,
            "controller": found.controller.id,
            "brokers": [[node.id, node.host, node.port] for node in found.nodes],
        }

    def describe_log_dirs(self, topic: str) -> dict[int, list[int]]:
        raise NotImplementedError

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        spec = ck_admin.OffsetSpec.for_timestamp(at) if isinstance(at, int) else None
        if spec is None:
            spec = {
                "earliest": ck_admin.OffsetSpec.earliest,
                "latest": ck_admin.OffsetSpec.latest,
                "max_timestamp": ck_admin.OffsetSpec.max_timestamp,
            }[str(at)]()
        wanted = {ck.TopicPartition(topic, partition): spec}
        offset: int = self._only(self._admin.list_offsets(wanted)).offset
        return offset

    def describe_producers(self, topic: str, partition: int) -> list[dict[str, int]]:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: librdkafka's admin handle is freed with its object."""
