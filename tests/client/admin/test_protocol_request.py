"""Requests that need three brokers: moving replicas, eligible leaders and elections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.process.broker_process import wait_until
from harness.process.brokers import COUNT_NAMES, REPLICATED, Brokers, started
from millstream.client import (
    Admin,
    BrokerError,
    ConfigResource,
    ConfigSource,
    Partition,
    PartitionDescription,
    Producer,
)

#: Named like the other tests on three brokers.
pytestmark = pytest.mark.xdist_group(f"admin on {COUNT_NAMES[3]}")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with started(tmp_path_factory.mktemp("admin"), 3, REPLICATED) as brokers:
        yield brokers


@pytest.fixture
def admin(brokers: Brokers) -> Iterator[Admin]:
    with Admin(brokers.bootstrap) as admin:
        yield admin


def test_the_cluster_and_its_partitions(admin: Admin, brokers: Brokers) -> None:
    assert [each.node_id for each in admin.describe_cluster().brokers] == brokers.node_ids
    admin.create_topic("described", partitions=2)
    wait_until(
        lambda: all(len(each.isr) == 3 for each in admin.describe_topic("described").partitions),
        "replicas in sync",
    )
    for each in admin.describe_topic("described").partitions:
        assert sorted(each.replicas) == brokers.node_ids
        assert each.leader in each.replicas
        assert each.elr == ()
    without = admin.describe_topics(["described"], elr=False)["described"]
    assert not isinstance(without, BrokerError)


def test_settings_of_all_brokers(admin: Admin) -> None:
    resource, name = ConfigResource.broker(), "log.cleaner.threads"
    admin.alter_config(resource, {name: "3"})
    found = admin.describe_config(resource)[name]
    assert (found.value, found.source) == ("3", ConfigSource.ALL_BROKERS)
    admin.alter_config(resource, {name: None})
    assert name not in admin.describe_config(resource)
    with pytest.raises(BrokerError, match="all brokers"):
        admin.alter_config(resource, {"no.such.setting": "1"})


def test_partitions_move_to_other_brokers(admin: Admin, brokers: Brokers) -> None:
    one, two, three = brokers.node_ids
    admin.create_topic("moved", partitions=2, replication_factor=1)
    with Producer(brokers.bootstrap) as producer:
        for number in range(100):
            producer.send("moved", str(number), partition=number % 2)
    zero = Partition("moved", 0)
    assert admin.alter_partition_reassignments({zero: [two, three]}) == {zero: None}

    def is_moved() -> bool:
        return admin.describe_topic("moved").partitions[0].replicas == (two, three)

    wait_until(is_moved, "the move")
    wait_until(lambda: not admin.list_partition_reassignments(["moved"]), "no reassignment")
    assert admin.list_topic_offsets("moved")[zero] == 50
    unknown = Partition("moved", 9)
    outcomes = admin.alter_partition_reassignments({unknown: [one], zero: None})
    error = outcomes[unknown]
    assert isinstance(error, BrokerError)
    assert error.name == "UNKNOWN_TOPIC_OR_PARTITION"
    idle = outcomes[zero]
    assert isinstance(idle, BrokerError)
    assert idle.name == "NO_REASSIGNMENT_IN_PROGRESS"


def test_elections(admin: Admin, brokers: Brokers) -> None:
    admin.create_topic("elected", partitions=2)
    zero, one, unknown = (Partition("elected", number) for number in (0, 1, 9))

    def described() -> PartitionDescription:
        return admin.describe_topic("elected").partitions[0]

    wait_until(lambda: len(described().isr) == 3, "replicas in sync")
    first, *rest = described().replicas
    # The same replicas in another order: the leader stays, and is not the preferred replica now.
    assert admin.alter_partition_reassignments({zero: [*rest, first]}) == {zero: None}
    wait_until(lambda: described().replicas == (*rest, first), "the new order")
    assert described().leader == first
    outcomes = admin.elect_leaders([zero, one, unknown])
    assert (outcomes[zero], outcomes[one]) == (True, False)
    error = outcomes[unknown]
    assert isinstance(error, BrokerError)
    assert error.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert str(error).startswith("Electing a leader of elected-9: ")
    assert described().leader == rest[0]
    assert admin.elect_leaders([zero], unclean=True) == {zero: False}
    assert admin.elect_leaders([]) == {}
    # Partitions that need no election are left out.
    assert not {zero, one} & admin.elect_leaders().keys()


def test_an_unclean_election(admin: Admin, brokers: Brokers) -> None:
    """The last replica in sync is lost. Only an unclean election lets the other one lead."""
    _, behind, last = brokers.node_ids
    admin.create_topic("lost", replication_factor=1, config={"min.insync.replicas": "1"})
    zero = Partition("lost", 0)

    def described() -> PartitionDescription:
        return admin.describe_topic("lost").partitions[0]

    def alive() -> set[int]:
        return {broker.node_id for broker in admin.describe_cluster().brokers}

    assert admin.alter_partition_reassignments({zero: [behind, last]}) == {zero: None}
    wait_until(lambda: described().replicas == (behind, last), "the move")
    wait_until(lambda: len(described().isr) == 2, "replicas in sync")
    try:
        brokers.kill(behind)
        wait_until(lambda: described().isr == (last,), "a smaller ISR")
        brokers.kill(last)
        wait_until(lambda: last not in alive(), "the end of its registration")
        error = admin.elect_leaders([zero], unclean=True)[zero]
        assert isinstance(error, BrokerError)
        assert error.name == "ELIGIBLE_LEADERS_NOT_AVAILABLE"
        brokers.start(behind)
        assert described().leader is None
        assert admin.elect_leaders([zero], unclean=True) == {zero: True}
        assert described().leader == behind
    finally:
        for each in (behind, last):
            if not brokers[each].is_alive():
                brokers.start(each)
