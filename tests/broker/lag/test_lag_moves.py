"""Leaders and coordinators move between three live brokers: each committed partition keeps its one
row. One of the brokers may have an earlier version."""

from __future__ import annotations

import math
from pathlib import Path

from harness.in_process.server_set import HOST, ServerSet
from harness.lag_scrape import HOUR_S, Place, Readers, Scrape
from harness.process.broker_process import wait_until
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.wire.api import ApiKey

PARTITIONS = 6
RECORDS = 10
GROUPS = ("g", "h", "i", "j")
PLACES: list[Place] = [(group, "t", number) for group in GROUPS for number in range(PARTITIONS)]
LOOKS = 5


class Brokers(ServerSet):
    """Brokers with metrics, topic `t`, and groups that have read different parts of it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        given = {"http_listen": f"{HOST}:0", "metrics_lag_interval_ms": "20", **settings}
        super().__init__(folder, 3, **given)

    def begin(self) -> None:
        ports = [server.ports["PLAINTEXT"] for server in self.servers.values()]
        readers = Readers(",".join(f"{HOST}:{port}" for port in ports))
        readers.create_topic("t", PARTITIONS, 3)
        for number in range(PARTITIONS):
            readers.produce("t", number, RECORDS, HOUR_S)
        for offset, group in enumerate(GROUPS):
            readers.commit(group, {("t", number): offset for number in range(PARTITIONS)})

    def scrape(self) -> Scrape:
        return Scrape(
            {
                node_id: server._http.port
                for node_id, server in self.servers.items()
                if server._http is not None
            }
        )

    def is_whole(self) -> bool:
        scrape = self.scrape()
        return scrape.is_complete(PLACES) and all(is_right(scrape, place) for place in PLACES)

    def check_stays_whole(self) -> None:
        wait_until(self.is_whole, "a right row for each partition")
        for _ in range(LOOKS):
            assert self.is_whole()


def is_right(scrape: Scrape, place: Place) -> bool:
    return (
        scrape.value("lag_records", place) == RECORDS - GROUPS.index(place[0])
        and HOUR_S <= scrape.value("lag_seconds", place) < 2 * HOUR_S
        and 8 * HOUR_S < scrape.value("headroom_seconds", place) <= 9 * HOUR_S
    )


def test_leaders_and_coordinators_move(tmp_path: Path) -> None:
    with Brokers(tmp_path) as brokers:
        brokers.begin()
        brokers.check_stays_whole()
        for move in range(6):
            for number in range(PARTITIONS):
                brokers.lead("t", number, 1 + (number + move) % 3)
            brokers.check_stays_whole()
            for group in GROUPS:
                place = brokers.place(OFFSETS_TOPIC, group)
                brokers.lead(OFFSETS_TOPIC, place, 1 + (place + move) % 3)
            brokers.check_stays_whole()


def test_a_new_coordinator_does_not_wait_for_its_next_round(tmp_path: Path) -> None:
    with Brokers(tmp_path, metrics_lag_interval_ms="3600000") as brokers:
        brokers.begin()
        for group in GROUPS:
            place = brokers.place(OFFSETS_TOPIC, group)
            leader = brokers.record(OFFSETS_TOPIC, place).leader
            brokers.lead(OFFSETS_TOPIC, place, 1 + leader % 3)
        brokers.check_stays_whole()


def test_a_leader_of_an_earlier_version(tmp_path: Path) -> None:
    """Such a broker closes the connection on a request that it does not support."""
    with Brokers(tmp_path) as brokers:
        brokers.begin()
        for number in range(PARTITIONS):
            brokers.lead("t", number, 1 + number % 3)
        for index in range(3):
            brokers.lead(OFFSETS_TOPIC, index, 1)
        brokers.check_stays_whole()
        earlier = brokers.services(2).apis
        known = brokers.ask(lambda: earlier._apis.pop(ApiKey.DESCRIBE_BACKLOG))
        # This coordinator has never received a response from that leader.
        for index in range(3):
            brokers.lead(OFFSETS_TOPIC, index, 3)

        def is_settled() -> bool:
            scrape = brokers.scrape()
            return scrape.is_complete(PLACES) and all(
                scrape.of_group("lag_unknown_partitions", group) == PARTITIONS / 3
                for group in GROUPS
            )

        wait_until(is_settled, "rows without values")
        scrape = brokers.scrape()
        for place in PLACES:
            if place[2] % 3 == 1:
                assert math.isnan(scrape.value("lag_records", place))
                assert math.isnan(scrape.value("lag_seconds", place))
                assert math.isnan(scrape.value("headroom_seconds", place))
            else:
                assert is_right(scrape, place)
        brokers.ask(lambda: earlier._apis.setdefault(ApiKey.DESCRIBE_BACKLOG, known))
        brokers.check_stays_whole()
