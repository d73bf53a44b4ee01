"""The lag metrics of all brokers of a cluster, combined as Prometheus would see them."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "millstream_consumer_group_"
PARTITION_GAUGES = ("lag_records", "lag_seconds", "headroom_seconds")
HOUR_S = 3600

#: Group, topic and partition.
Place = tuple[str, str, int]


class Sample(NamedTuple):
    broker: int
    labels: dict[str, str]
    value: float


class Scrape:
    """One scrape of each running broker, by its `http_ports`."""

    def __init__(self, http_ports: Mapping[int, int]) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for node_id, port in http_ports.items():
            url = f"http://127.0.0.1:{port}/metrics"
            with urllib.request.urlopen(url, timeout=60) as response:
                lines = response.read().decode().splitlines(keepends=True)
            text = "".join(line for line in lines if line.startswith(PREFIX))
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    found = Sample(node_id, sample.labels, sample.value)
                    self._samples.setdefault(sample.name, []).append(found)
        self._rows = {gauge: self._rows_of(gauge) for gauge in PARTITION_GAUGES}

    def _rows_of(self, gauge: str) -> dict[Place, list[Sample]]:
        found: dict[Place, list[Sample]] = {}
        for sample in self._samples.get(PREFIX + gauge, []):
            labels = sample.labels
            place = labels["group"], labels["topic"], int(labels["partition"])
            found.setdefault(place, []).append(sample)
        return found

    def value(self, gauge: str, place: Place) -> float:
        """Return the value of the only row of a gauge in `PARTITION_GAUGES`."""
        (sample,) = self._rows[gauge][place]
        return sample.value

    def of_group(self, gauge: str, group: str) -> float:
        """Return a gauge of a group from the only broker that exports it."""
        samples = self._samples.get(PREFIX + gauge, [])
        (found,) = [sample for sample in samples if sample.labels["group"] == group]
        return found.value

    def is_complete(self, places: Iterable[Place]) -> bool:
        """Whether exactly these partitions have one row in each gauge."""
        wanted = dict.fromkeys(places, 1)
        return all(
            {place: len(rows) for place, rows in self._rows[gauge].items()} == wanted
            for gauge in PARTITION_GAUGES
        )


class Readers:
    """A client that writes records of a given age and commits offsets of groups."""

    def __init__(self, bootstrap: str) -> None:
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin, self._producer = AdminClient(config), Producer(config)

    def create_topic(
        self, name: str, partitions: int, replicas: int, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with ten hours of retention unless `config` says otherwise."""
        given = {"retention.ms": str(10 * HOUR_S * 1000), **(config or {})}
        topic = NewTopic(name, partitions, replicas, config=given)
        self._admin.create_topics([topic])[name].result(60)

    def produce(self, topic: str, partition: int, count: int, age_s: float) -> None:
        written_ms = int((time.time() - age_s) * 1000)
        failures: list[object] = []
        for _ in range(count):
            self._producer.produce(
                topic,
                "v",
                partition=partition,
                timestamp=written_ms,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert self._producer.flush(60) == 0
        assert not failures, failures

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        wanted = [TopicPartition(*key, offset) for key, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, wanted)
        done = self._admin.alter_consumer_group_offsets([request])[group].result(60)
        assert not any(each.error for each in done.topic_partitions), done
