"""`Admin` against real brokers: topics, settings, groups and offsets."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import wait_until
from millstream.client import (
    Admin,
    BrokerError,
    ClosedError,
    ConfigResource,
    ConfigSource,
    Consumer,
    GroupState,
    GroupType,
    NewTopic,
    OffsetAndMetadata,
    Partition,
    Producer,
    TimedOut,
    UsageError,
)
from millstream.client.error import MillstreamError


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap, client_id="test-admin") as admin:
        yield admin


@pytest.fixture
def topic_name(name: Callable[[str], str]) -> str:
    return name("topic")


@pytest.fixture
def full_topic(admin: Admin, bootstrap: str, topic_name: str) -> str:
    """A topic of two partitions with the offsets 0 to 9 each, one second apart."""
    admin.create_topic(topic_name, partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(10):
            for partition in (0, 1):
                producer.send(
                    topic_name,
                    str(number),
                    partition=partition,
                    timestamp=1_000_000 + 1000 * number,
                )
    return topic_name


def committed(admin: Admin, group: str) -> dict[Partition, int]:
    return {each: int(offset) for each, offset in admin.list_group_offsets(group).items()}


# Topics


def test_topics_are_created_described_and_deleted(admin: Admin, topic_name: str) -> None:
    assert admin.create_topic(topic_name, partitions=3, config={"retention.ms": "3600000"})
    assert topic_name in admin.list_topics()
    found = admin.describe_topic(topic_name)
    assert found.name == topic_name
    assert len(found.topic_id) == 22
    assert not found.is_internal
    assert found.replication_factor == 1
    assert [each.partition for each in found.partitions] == [0, 1, 2]
    for each in found.partitions:
        assert each.replicas == each.isr == (each.leader,)
    admin.delete_topic(topic_name)
    wait_until(lambda: topic_name not in admin.list_topics(), "the topic to be deleted")


def test_an_existing_topic_is_an_error_unless_allowed(admin: Admin, topic_name: str) -> None:
    assert admin.create_topic(topic_name)
    assert not admin.create_topic(topic_name, if_missing=True)
    with pytest.raises(BrokerError, match="Creating topic") as caught:
        admin.create_topic(topic_name)
    assert caught.value.name == "TOPIC_ALREADY_EXISTS"


def test_plural_calls_return_the_outcome_of_each_topic(admin: Admin, topic_name: str) -> None:
    topics = [NewTopic(name=topic_name, partitions=1), NewTopic(name="bad name", partitions=1)]
    created = admin.create_topics(topics)
    assert created[topic_name] is None
    assert isinstance(created["bad name"], BrokerError)
    described = admin.describe_topics([topic_name, "no-such-topic"])
    assert not isinstance(described[topic_name], MillstreamError)
    assert isinstance(described["no-such-topic"], BrokerError)
    deleted = admin.delete_topics([topic_name, "no-such-topic"])
    assert deleted[topic_name] is None
    assert isinstance(deleted["no-such-topic"], BrokerError)


def test_validation_creates_nothing(admin: Admin, topic_name: str) -> None:
    topic = NewTopic(name=topic_name, partitions=1)
    assert admin.create_topics([topic], validate_only=True) == {topic_name: None}
    assert topic_name not in admin.list_topics()


def test_partitions_are_added(admin: Admin, topic_name: str) -> None:
    admin.create_topic(topic_name, partitions=1)
    admin.create_partitions(topic_name, 4)
    wait_until(lambda: len(admin.describe_topic(topic_name).partitions) == 4, "four partitions")
    with pytest.raises(BrokerError, match="Adding partitions") as caught:
        admin.create_partitions(topic_name, 2)
    assert caught.value.name == "INVALID_PARTITIONS"


def test_internal_topics_are_listed_on_request(
    admin: Admin, bootstrap: str, full_topic: str
) -> None:
    with Consumer(bootstrap, topics=[full_topic], group_id=f"{full_topic}-internal") as consumer:
        consumer.poll()
    wait_until(
        lambda: "__consumer_offsets" in admin.list_topics(internal=True), "the internal topic"
    )
    assert "__consumer_offsets" not in admin.list_topics()


def test_records_are_deleted(admin: Admin, full_topic: str) -> None:
    first, second = Partition(full_topic, 0), Partition(full_topic, 1)
    deleted = admin.delete_records({first: 4, second: -1})
    assert deleted == {first: 4, second: 10}
    assert admin.list_topic_offsets(full_topic, "earliest") == {first: 4, second: 10}
    beyond = admin.delete_records({first: 99})[first]
    assert isinstance(beyond, BrokerError)
    assert beyond.name == "OFFSET_OUT_OF_RANGE"


def test_offsets_are_listed_by_position_and_time(admin: Admin, full_topic: str) -> None:
    first, second = Partition(full_topic, 0), Partition(full_topic, 1)
    assert admin.list_topic_offsets(full_topic, "earliest") == {first: 0, second: 0}
    assert admin.list_topic_offsets(full_topic) == {first: 10, second: 10}
    moment = dt.datetime.fromtimestamp(1003.5, dt.UTC)
    late = int(time.time() * 1000)
    missing = Partition(full_topic, 7)
    found = admin.list_offsets({first: moment, second: late, missing: "latest"})
    assert found[first] == 4
    assert found[second] == -1
    assert isinstance(found[missing], BrokerError)
    assert admin.list_offsets({first: "max_timestamp"}) == {first: 9}
    with pytest.raises(UsageError, match="no time zone"):
        admin.list_offsets({first: moment.replace(tzinfo=None)})
    with pytest.raises(BrokerError, match="no-such-topic"):
        admin.list_topic_offsets("no-such-topic")


# The cluster and settings


def test_the_cluster_is_described(admin: Admin, bootstrap: str) -> None:
    found = admin.describe_cluster()
    assert found.cluster_id
    assert found.controller in found.brokers
    assert [f"{each.host}:{each.port}" for each in found.brokers] == [bootstrap]


def test_topic_settings_change_one_by_one(admin: Admin, topic_name: str) -> None:
    admin.create_topic(topic_name, config={"retention.ms": "3600000"})
    resource = ConfigResource.topic(topic_name)
    admin.alter_config(resource, {"segment.bytes": "2000000"})
    found = admin.describe_config(resource)
    assert (found["retention.ms"].value, found["segment.bytes"].value) == ("3600000", "2000000")
    assert found["retention.ms"].source is ConfigSource.TOPIC
    admin.alter_config(resource, {"retention.ms": None})
    entry = admin.describe_config(resource)["retention.ms"]
    assert entry.source is ConfigSource.DEFAULT
    assert entry.is_default
    with pytest.raises(BrokerError, match="Changing the settings of topic"):
        admin.alter_config(resource, {"retention.ms": "soon"})


def test_broker_and_group_settings(admin: Admin) -> None:
    node_id = admin.describe_cluster().brokers[0].node_id
    broker, group = ConfigResource.broker(node_id), ConfigResource.group("some-group")
    thread_count, interval = "log.cleaner.threads", "consumer.heartbeat.interval.ms"
    altered = admin.alter_configs({broker: {thread_count: "2"}, group: {interval: "1000"}})
    assert altered == {broker: None, group: None}
    wait_until(lambda: admin.describe_config(broker)[thread_count].value == "2", "the setting")
    wait_until(lambda: admin.describe_config(group)[interval].value == "1000", "the setting")
    assert admin.describe_config(group)[interval].source is ConfigSource.GROUP
    missing = ConfigResource.topic("no-such-topic")
    found = admin.describe_configs([broker, missing])
    assert not isinstance(found[broker], MillstreamError)
    assert isinstance(found[missing], BrokerError)
    admin.alter_config(broker, {thread_count: None})


@pytest.mark.parametrize(("value", "text"), [(1000, "1000"), (False, "false")])
def test_values_of_settings_are_strings(admin: Admin, value: Any, text: str) -> None:
    values = {"retention.ms": value}
    with pytest.raises(UsageError, match=f"retention.ms is {value}: pass a string, '{text}'"):
        admin.create_topic("orders", config=values)
    with pytest.raises(UsageError, match=f"retention.ms is {value}: pass a string, '{text}'"):
        admin.alter_config(ConfigResource.topic("orders"), values)


def test_a_resource_must_be_typed(admin: Admin) -> None:
    with pytest.raises(UsageError, match=r"ConfigResource\.topic"):
        admin.describe_config("orders")  # type: ignore[arg-type]


# Groups


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_listed_and_described(
    admin: Admin, bootstrap: str, full_topic: str, protocol: str
) -> None:
    group = f"{full_topic}-{protocol}"
    expected = GroupType.CLASSIC if protocol == "classic" else GroupType.CONSUMER
    with Consumer(
        bootstrap,
        topics=[full_topic],
        group_id=group,
        group_protocol=protocol,  # type: ignore[arg-type]
        config={"client.id": "reader"},
    ) as consumer:
        wait_until(lambda: len(consumer.poll()) > 0, "records")
        wait_until(lambda: admin.describe_group(group).state is GroupState.STABLE, "a stable group")
        found = admin.describe_group(group)
        assert found.type is expected
        assert found.is_active
        assert found.coordinator == admin.describe_cluster().brokers[0]._replace(
            rack=found.coordinator.rack if found.coordinator else None
        )
        (member,) = found.members
        assert member.client_id == "reader"
        assert member.assignment == (Partition(full_topic, 0), Partition(full_topic, 1))
        (listed,) = [each for each in admin.list_groups() if each.group_id == group]
        assert listed.type is expected
        running = admin.delete_groups([group])[group]
        assert isinstance(running, BrokerError)
        assert running.name == "NON_EMPTY_GROUP"
    empty = admin.list_groups(states=[GroupState.EMPTY], types=[expected])
    assert group in [each.group_id for each in empty]
    assert group not in [each.group_id for each in admin.list_groups(states=[GroupState.STABLE])]
    admin.delete_group(group)
    assert group not in [each.group_id for each in admin.list_groups()]


def test_a_missing_group(admin: Admin) -> None:
    with pytest.raises(BrokerError, match="does not exist") as caught:
        admin.describe_group("no-such-group")
    assert caught.value.name == "GROUP_ID_NOT_FOUND"
    with pytest.raises(BrokerError, match="no-such-group"):
        admin.delete_group("no-such-group")
    assert admin.list_group_offsets("no-such-group") == {}
    with pytest.raises(UsageError, match="cannot be empty"):
        admin.describe_group("")


def test_group_offsets_are_altered_and_deleted(admin: Admin, full_topic: str) -> None:
    group, first, second = f"{full_topic}-o", Partition(full_topic, 0), Partition(full_topic, 1)
    offsets = {first: OffsetAndMetadata(3, "note"), second: 4}
    assert admin.alter_group_offsets(group, offsets) == {first: None, second: None}
    found = admin.list_group_offsets(group)
    assert found == {first: 3, second: 4}
    assert found[first].metadata == "note"
    assert admin.delete_group_offsets(group, [first]) == {first: None}
    assert committed(admin, group) == {second: 4}
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        admin.delete_group_offsets("no-such-group", [first])


def test_offsets_are_reset(admin: Admin, full_topic: str) -> None:
    group, first, second = f"{full_topic}-r", Partition(full_topic, 0), Partition(full_topic, 1)
    planned = admin.reset_group_offsets(group, topics=[full_topic], to="latest", dry_run=True)
    assert [(each.key, each.current, each.new) for each in planned] == [
        (first, None, 10),
        (second, None, 10),
    ]
    assert committed(admin, group) == {}
    admin.reset_group_offsets(group, topics=[full_topic], to="latest")
    assert committed(admin, group) == {first: 10, second: 10}
    changed = admin.reset_group_offsets(group, topics=[first], shift_by=-3)
    assert [each.difference for each in changed] == [-3]
    assert committed(admin, group) == {first: 7, second: 10}
    admin.reset_group_offsets(group, to=dt.datetime.fromtimestamp(1002, dt.UTC))
    assert committed(admin, group) == {first: 2, second: 2}
    admin.reset_group_offsets(group, duration=dt.timedelta(hours=1))
    assert committed(admin, group) == {first: 10, second: 10}
    admin.reset_group_offsets(group, to={first: 1, second: 99})
    assert committed(admin, group) == {first: 1, second: 10}
    admin.reset_group_offsets(group, to=5, topics=[second])
    admin.reset_group_offsets(group, to="earliest", topics=[first])
    assert committed(admin, group) == {first: 0, second: 5}


def test_offsets_of_an_active_group_are_not_reset(
    admin: Admin, bootstrap: str, full_topic: str
) -> None:
    group = f"{full_topic}-active"
    with Consumer(bootstrap, topics=[full_topic], group_id=group) as consumer:
        wait_until(lambda: len(consumer.poll()) > 0, "records")
        with pytest.raises(BrokerError, match="has members") as caught:
            admin.reset_group_offsets(group, to="earliest")
        assert caught.value.name == "NON_EMPTY_GROUP"
        with pytest.raises(BrokerError, match="has members"):
            admin.alter_group_offsets(group, {Partition(full_topic, 0): 0})


def test_a_reset_checks_its_arguments(admin: Admin, full_topic: str) -> None:
    with pytest.raises(UsageError, match="exactly one"):
        admin.reset_group_offsets("g", to="earliest", shift_by=1)
    with pytest.raises(UsageError, match="no committed offset"):
        admin.reset_group_offsets(f"{full_topic}-none", topics=[full_topic], shift_by=1)
    with pytest.raises(BrokerError, match="no partition 9"):
        admin.reset_group_offsets("g", topics=[Partition(full_topic, 9)], to="earliest")


# The client itself


def test_old_names_say_the_new_ones(admin: Admin) -> None:
    with pytest.raises(AttributeError, match=r"use Admin\.list_topics\(\)"):
        admin.topics()
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        admin.nonsense()


def test_old_keywords_say_the_new_ones() -> None:
    with pytest.raises(UsageError, match="'bootstrap_servers'"):
        Admin(servers="127.0.0.1:9092")  # type: ignore[arg-type]


def test_a_closed_client_raises(bootstrap: str) -> None:
    admin = Admin(bootstrap)
    admin.close()
    with pytest.raises(ClosedError):
        admin.list_topics()


def test_a_string_is_not_a_list_of_names(admin: Admin) -> None:
    with pytest.raises(UsageError, match="pass a list"):
        admin.describe_topics("orders")


def test_wrong_settings_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no\.such\.property"):
        Admin(config={"no.such.property": "1"})


def test_no_broker_is_a_timeout() -> None:
    with (
        Admin("127.0.0.1:1", timeout=0.3) as admin,
        pytest.raises(TimedOut, match="Describing the cluster"),
    ):
        admin.describe_cluster()


def test_an_error_callback_may_end_a_call() -> None:
    def give_up(error: object) -> None:
        raise ConnectionError(str(error))

    with (
        Admin("127.0.0.1:1", config={"error_cb": give_up}) as admin,
        pytest.raises(ConnectionError, match=r"refused|down"),
    ):
        admin.describe_cluster()


def threads_of_librdkafka() -> set[str]:
    """Return the ids of the threads in this process that librdkafka has started."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        # A thread may have ended since it was listed.
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


def test_a_closed_client_leaves_no_threads_and_connections(bootstrap: str) -> None:
    others = threads_of_librdkafka()
    gc.disable()
    try:
        with Admin(bootstrap) as admin:
            admin.list_topics()
            assert threads_of_librdkafka() - others
        assert threads_of_librdkafka() <= others
    finally:
        gc.enable()
