"""Lag in a cluster: every committed partition has one row over the scrapes of all brokers.

It does not matter which broker leads the partition, and which one coordinates its group.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.lag_scrape import HOUR_S, Place, Readers, Scrape
from harness.process.broker_process import wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_transaction import GROUP
from millstream.wire.messages.metadata import MetadataRequest

PARTITIONS = 6
RECORDS = 10
#: Topics by their number of replicas.
TOPICS = {"spread": 3, "single": 1}
GROUPS = [f"group-{number}" for number in range(6)]
PLACES: list[Place] = [
    (group, topic, number) for group in GROUPS for topic in TOPICS for number in range(PARTITIONS)
]
#: Number of equal scrapes after which the rows count as stable.
LOOKS = 10


class Cluster(ProcessCluster):
    """Three brokers; each group has read a different part of all partitions."""

    def begin(self) -> None:
        readers = Readers(self.bootstrap)
        self.create_topic("first", 1)
        for topic, replicas in TOPICS.items():
            readers.create_topic(topic, PARTITIONS, replicas)
            for number in range(PARTITIONS):
                readers.produce(topic, number, RECORDS, HOUR_S)
        for group in GROUPS:
            self.coordinator(group, GROUP)
            offsets = {
                (topic, number): committed(group, number)
                for topic in TOPICS
                for number in range(PARTITIONS)
            }
            readers.commit(group, offsets)

    def scrape(self) -> Scrape:
        return Scrape(
            {
                number: broker.http_port
                for number, broker in self._brokers.items()
                if broker.is_alive()
            }
        )

    def describe(self, group: str) -> dict[str, Any]:
        """Return the rows of `millstream group describe`, one for each partition."""
        command = [str(Path(sys.executable).with_name("millstream")), "group", "describe", group]
        command += ["--json", "--bootstrap-server", self.bootstrap]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result
        row: dict[str, Any] = json.loads(result.stdout)
        assert len(row["partitions"]) == PARTITIONS * len(TOPICS)
        return row

    def leaders(self, topic: str) -> dict[int, int]:
        with self.client() as client:
            request = MetadataRequest(topics=[MetadataRequest.Topic(name=topic)])
            (row,) = client.call(request).topics
        return {each.partition_index: each.leader_id for each in row.partitions}


def committed(group: str, partition: int) -> int:
    """Return a committed offset between the start and the end."""
    return (GROUPS.index(group) + 2 * partition) % (RECORDS + 1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        "metrics.lag.interval.ms": 50,
        "offsets.topic.num.partitions": 6,
        "auto.leader.rebalance.enable": False,
    }
    with Cluster(tmp_path_factory.mktemp("lag"), 3, settings) as brokers:
        brokers.begin()
        yield brokers


def is_right(scrape: Scrape, place: Place) -> bool:
    """Return whether a row is correct for a partition that has a leader."""
    group, _, partition = place
    records = RECORDS - committed(group, partition)
    if scrape.value("lag_records", place) != records:
        return False
    seconds = scrape.value("lag_seconds", place)
    headroom = scrape.value("headroom_seconds", place)
    if not records:
        return seconds == 0 and headroom == math.inf
    return HOUR_S <= seconds < 2 * HOUR_S and 8 * HOUR_S < headroom <= 9 * HOUR_S


def is_whole(cluster: Cluster) -> bool:
    scrape = cluster.scrape()
    return scrape.is_complete(PLACES) and all(is_right(scrape, place) for place in PLACES)


def check_stays_whole(cluster: Cluster) -> None:
    for _ in range(LOOKS):
        assert is_whole(cluster)


def test_every_committed_partition_has_one_row(cluster: Cluster) -> None:
    assert len(set(cluster.leaders("single").values())) == 3
    assert len({cluster.coordinator(group, GROUP) for group in GROUPS}) > 1
    wait_until(lambda: cluster.scrape().is_complete(PLACES), "a row for each partition")
    wait_until(lambda: is_whole(cluster), "the right values")
    check_stays_whole(cluster)
    scrape = cluster.scrape()
    for group in GROUPS:
        records = [RECORDS - committed(group, n) for _ in TOPICS for n in range(PARTITIONS)]
        assert scrape.of_group("lag_records_sum", group) == sum(records)
        assert scrape.of_group("lag_records_max", group) == max(records)
        assert scrape.of_group("lag_unknown_partitions", group) == 0


def test_brokers_die_and_come_back(cluster: Cluster) -> None:
    """Leaders and coordinators move, and partitions with one replica have no leader."""
    wait_until(lambda: is_whole(cluster), "all rows")
    before = cluster.leaders("single")
    coordinators = {group: cluster.coordinator(group, GROUP) for group in GROUPS}
    cluster[2].kill()
    orphans = [place for place in PLACES if place[1] == "single" and before[place[2]] == 2]
    assert orphans
    kept = [place for place in orphans if coordinators[place[0]] != 2]
    others = [place for place in PLACES if place not in orphans]

    def is_settled() -> bool:
        scrape = cluster.scrape()
        unknown = [scrape.of_group("lag_unknown_partitions", group) for group in GROUPS]
        return all(each == len(orphans) / len(GROUPS) for each in unknown)

    def is_complete() -> bool:
        scrape = cluster.scrape()
        return scrape.is_complete(PLACES) and all(is_right(scrape, place) for place in others)

    wait_until(lambda: is_complete() and is_settled(), "a row for each partition again")
    for _ in range(LOOKS):
        assert is_complete()
        scrape = cluster.scrape()
        assert all(is_right(scrape, place) for place in kept), "the last values are kept"
        for place in orphans:
            records = scrape.value("lag_records", place)
            # The new coordinator may know the end offset from another group.
            assert math.isnan(records) or records == RECORDS - committed(place[0], place[2])
    described = cluster.describe(GROUPS[0])
    assert described["unknown_partitions"] == len(orphans) / len(GROUPS)
    cluster[2].start()
    wait_until(lambda: is_whole(cluster), "the rows of the broker that is back")
    check_stays_whole(cluster)
    described = cluster.describe(GROUPS[0])
    assert described["unknown_partitions"] == 0
    assert described["lag"] == cluster.scrape().of_group("lag_records_sum", GROUPS[0])


def test_brokers_are_restarted_one_by_one(cluster: Cluster) -> None:
    wait_until(lambda: is_whole(cluster), "all rows")
    coordinators: dict[str, set[int]] = {group: set() for group in GROUPS}
    for number in (1, 2, 3):
        cluster[number].stop()
        wait_until(lambda: cluster.scrape().is_complete(PLACES), "a row for each partition")
        cluster[number].start()
        wait_until(lambda: is_whole(cluster), "the right values")
        check_stays_whole(cluster)
        for group in GROUPS:
            coordinators[group].add(cluster.coordinator(group, GROUP))
    assert all(len(found) > 1 for found in coordinators.values()), "each has moved"


def test_a_coordinator_and_leader_that_hangs(cluster: Cluster) -> None:
    """Requests to the broker time out, and other brokers take over its replicated partitions.

    Once the broker continues, it shows none of the groups that it has lost."""
    wait_until(lambda: is_whole(cluster), "all rows")
    hanging = cluster.coordinator(GROUPS[0], GROUP)
    led = [leader for leader in cluster.leaders("single").values() if leader == hanging]
    assert led
    others = {number: cluster[number].http_port for number in (1, 2, 3) if number != hanging}

    def is_taken_over() -> bool:
        scrape = Scrape(others)
        return scrape.is_complete(PLACES) and all(
            scrape.of_group("lag_unknown_partitions", group) == len(led) for group in GROUPS
        )

    cluster[hanging].pause()
    try:
        wait_until(is_taken_over, "a row for each partition")
    finally:
        cluster[hanging].resume()
    for _ in range(LOOKS):
        assert cluster.scrape().is_complete(PLACES)
    wait_until(lambda: is_whole(cluster), "the right values")
    check_stays_whole(cluster)
