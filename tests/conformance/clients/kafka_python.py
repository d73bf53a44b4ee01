"""kafka-python, with its admin client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from clients.contract import (
    CODECS,
    FETCH_WAIT_MS,
    MESSAGE_BYTES_MAX,
    NULL_BOTH,
    NULL_HEADER,
    WAIT_SECONDS_MAX,
    DriverError,
    Record,
    Settings,
)

with warnings.catch_warnings():
    # Its import reads schemas through a call that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec


class KafkaPythonClient:
    name: ClassVar[str] = "kafka-python"
    codecs: ClassVar[Sequence[str]] = CODECS
    lacks: ClassVar[frozenset[str]] = frozenset({NULL_BOTH, NULL_HEADER})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._reading: kafka.KafkaConsumer | None = None

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], settings: Settings
    ) -> list[int]:
        chosen = {}
        if settings.idempotent is not None:
            chosen["enable_idempotence"] = settings.idempotent
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if settings.codec == "none" else settings.codec,
            acks="all" if settings.acks == "all" else int(settings.acks),
            max_request_size=MESSAGE_BYTES_MAX,
            **chosen,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(WAIT_SECONDS_MAX)
            return [future.get(WAIT_SECONDS_MAX).offset for future in sent]
        finally:
            producer.close(WAIT_SECONDS_MAX)

    def _reader(self) -> kafka.KafkaConsumer:
        if self._reading is None:
            self._reading = kafka.KafkaConsumer(
                bootstrap_servers=self._bootstrap,
                group_id=None,
                auto_offset_reset="none",
                enable_auto_commit=False,
                fetch_max_wait_ms=FETCH_WAIT_MS,
            )
        return self._reading

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        consumer = self._reader()
        assigned = kafka.TopicPartition(topic, partition)
        consumer.assign([assigned])
        consumer.seek(assigned, offset)
        records: list[Record] = []
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(records) < count and time.monotonic() < deadline:
            found = consumer.poll(timeout_ms=1000, max_records=count - len(records))
            records += [self._to_record(message) for message in found.get(assigned, ())]
        return records

    def consume_from_time(
        self, topic: str, partition: int, timestamp: int, count: int
    ) -> list[Record]:
        assigned = kafka.TopicPartition(topic, partition)
        found = self._reader().offsets_for_times({assigned: timestamp})
        return self.consume(topic, partition, found[assigned].offset, count)

    @staticmethod
    def _to_record(message: Any) -> Record:
        return Record(
            message.key, message.value, tuple(message.headers), message.timestamp, message.offset
        )

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()


class KafkaPythonAdmin:
    name: ClassVar[str] = "kafka-python"
    lacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, bootstrap: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(
        self, topic: str, partitions: int, configs: dict[str, str], replicas: int = -1
    ) -> None:
        options = {
            "num_partitions": partitions,
            "replication_factor": replicas,
            "configs": configs,
        }
        self._admin.create_topics({topic: options})

    def list_topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        (found,) = self._admin.describe_topics([topic])
        return [
            {
                "partition": partition["partition_index"],
                "leader": partition["leader_id"],
                "replicas": partition["replica_nodes"],
                "isr": partition["isr_nodes"],
            }
            for partition in found["partitions"]
        ]

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def create_partitions(self, topic: str, total: int) -> None:
        self._admin.create_partitions({topic: total})

    def describe_config(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._admin.describe_configs([resource], config_filter="all")
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    def alter_config(self, topic: str, configs: dict[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)
        outcome = self._admin.alter_configs([resource], incremental=True)["topic"][topic]
        if outcome != "OK":
            raise DriverError(str(outcome))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = kafka.TopicPartition(topic, partition)
        low: int = self._admin.delete_records({wanted: before})[wanted]["low_watermark"]
        return low

    def describe_cluster(self) -> dict[str, Any]:
        found = self._admin.describe_cluster()
        return {
            "cluster_id": found["cluster_id"],
            "controller": found["controller_id"],
            "brokers": [
                [node["broker_id"], node["host"], node["port"]] for node in found["brokers"]
            ],
        }

    def describe_log_dirs(self, topic: str) -> dict[int, list[int]]:
        sizes: dict[int, list[int]] = {}
        for broker in self._admin.describe_log_dirs([topic]):
            for folder in broker["log_dirs"]:
                for found in folder["topics"]:
                    if found["name"] == topic:
                        for row in found["partitions"]:
                            of_partition = sizes.setdefault(row["partition_index"], [])
                            of_partition.append(row["partition_size"])
        return sizes

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        wanted = kafka.TopicPartition(topic, partition)
        spec = at if isinstance(at, int) else OffsetSpec[at.upper()]
        offset: int = self._admin.list_partition_offsets({wanted: spec})[wanted].offset
        return offset

    def describe_producers(self, topic: str, partition: int) -> list[dict[str, int]]:
        wanted = kafka.TopicPartition(topic, partition)
        found = self._admin.describe_producers([wanted])[wanted]
        return [
            {"last_sequence": state.last_sequence, "producer_epoch": state.producer_epoch}
            for state in found.active_producers
        ]

    def close(self) -> None:
        self._admin.close()
