"""The admin clients manage topics, configurations and records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clients.catalogue import ADMINS
from clients.contract import WAIT_SECONDS_MAX, Admin, Client, Record, Settings

SOME_TIME = 1_700_000_000_000

each_admin = pytest.mark.parametrize("admin", ADMINS, indirect=True)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition: a broker may show a change only after its response."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            done = condition()
        except Exception:
            if time.monotonic() > deadline:
                raise
            done = False
        if done:
            return
        assert time.monotonic() < deadline, "the change did not show"
        time.sleep(0.02)


def create(admin: Admin, topic: str, partitions: int, configs: dict[str, str]) -> None:
    admin.create_topic(topic, partitions, configs)
    eventually(lambda: len(admin.describe_topic(topic)) == partitions)


def admins_with(call: str) -> Iterator[Any]:
    """Return every admin client; clients without such a call are skipped by name."""
    for name, kind in ADMINS.items():
        marks = [pytest.mark.skip(reason=f"{name} has no {call}")] if call in kind.lacks else []
        yield pytest.param(name, marks=marks)


@each_admin
def test_create_list_describe_delete(admin: Admin, fresh_name: Callable[[], str]) -> None:
    topic = fresh_name()
    nodes = sorted(node for node, _, _ in admin.describe_cluster()["brokers"])
    admin.create_topic(topic, 3, {}, replicas=len(nodes))
    eventually(lambda: topic in admin.list_topics())
    eventually(lambda: len(admin.describe_topic(topic)) == 3)
    partitions = sorted(admin.describe_topic(topic), key=lambda found: found["partition"])
    assert [found["partition"] for found in partitions] == [0, 1, 2]
    for found in partitions:
        assert found["leader"] == found["replicas"][0]
        assert sorted(found["replicas"]) == sorted(found["isr"]) == nodes
    assert {found["leader"] for found in partitions} == set(nodes), "each broker leads"
    admin.delete_topic(topic)
    eventually(lambda: topic not in admin.list_topics())


@each_admin
def test_a_topic_is_created_once(admin: Admin, fresh_name: Callable[[], str]) -> None:
    topic = fresh_name()
    create(admin, topic, 1, {})
    if admin.name == "kafkajs":
        admin.create_topic(topic, 2, {})  # it returns False instead of raising
    else:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # each client has its own class
            admin.create_topic(topic, 2, {})
        assert "exist" in repr(caught.value).lower()
    assert len(admin.describe_topic(topic)) == 1


@each_admin
def test_a_deleted_name_is_free_again(
    admin: Admin, client_named: Callable[[str], Client], fresh_name: Callable[[], str]
) -> None:
    topic = fresh_name()
    create(admin, topic, 1, {})
    client_named("confluent").produce(topic, 0, [Record(b"old", b"old")], Settings())
    admin.delete_topic(topic)
    create(admin, topic, 2, {})
    assert admin.list_offset(topic, 0, "latest") == 0


@each_admin
def test_create_partitions(admin: Admin, fresh_name: Callable[[], str]) -> None:
    topic = fresh_name()
    create(admin, topic, 1, {})
    admin.create_partitions(topic, 4)
    eventually(lambda: len(admin.describe_topic(topic)) == 4)


@each_admin
def test_configs(admin: Admin, fresh_name: Callable[[], str]) -> None:
    topic = fresh_name()
    create(admin, topic, 1, {"retention.ms": "86400000"})
    found = admin.describe_config(topic)
    assert found["retention.ms"] == "86400000"
    assert found["cleanup.policy"] == "delete"
    assert found["segment.bytes"] == str(1 << 30)
    changes = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    admin.alter_config(topic, changes)
    eventually(lambda: changes.items() <= admin.describe_config(topic).items())


@each_admin
def test_a_bad_config_is_rejected(admin: Admin, fresh_name: Callable[[], str]) -> None:
    topic = fresh_name()
    create(admin, topic, 1, {})
    with pytest.raises(Exception, match=r"(?i)config|retention"):
        admin.alter_config(topic, {"retention.ms": "a while"})
    assert admin.describe_config(topic)["retention.ms"] == "604800000"


@each_admin
def test_delete_records(
    admin: Admin, client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client = client_named("confluent")
    client.produce(topic, 0, [Record(b"k", b"%d" % i) for i in range(10)], Settings())
    assert admin.delete_records(topic, 0, 4) == 4
    assert admin.list_offset(topic, 0, "earliest") == 4
    assert admin.list_offset(topic, 0, "latest") == 10
    assert client.consume(topic, 0, 4, 1)[0].value == b"4"


@each_admin
def test_describe_cluster(admin: Admin, bootstrap: str) -> None:
    found = admin.describe_cluster()
    addresses = {f"{host}:{port}" for _, host, port in found["brokers"]}
    assert addresses == set(bootstrap.split(","))
    assert found["controller"] in {node for node, _, _ in found["brokers"]}
    assert len(found["cluster_id"]) == 22


@pytest.mark.parametrize("admin", list(admins_with("describe_log_dirs")), indirect=True)
def test_describe_log_dirs(
    admin: Admin, client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    client_named("confluent").produce(topic, 1, [Record(b"k", bytes(1000))], Settings())
    sizes = admin.describe_log_dirs(topic)
    replicas = len(admin.describe_cluster()["brokers"])
    assert sizes[0] == [0] * replicas
    assert len(sizes[1]) == replicas
    assert all(1000 < size < 1200 for size in sizes[1])


@each_admin
def test_list_offsets(
    admin: Admin, client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    times = [SOME_TIME, SOME_TIME + 9000, SOME_TIME + 1000]
    records = [Record(b"k", b"v", (), time) for time in times]
    client_named("confluent").produce(topic, 0, records, Settings())
    assert admin.list_offset(topic, 0, "earliest") == 0
    assert admin.list_offset(topic, 0, "latest") == 3
    assert admin.list_offset(topic, 0, SOME_TIME + 1) == 1


@pytest.mark.parametrize("admin", list(admins_with("max_timestamp")), indirect=True)
def test_list_offset_of_the_newest_timestamp(
    admin: Admin, client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    times = [SOME_TIME, SOME_TIME + 9000, SOME_TIME + 1000]
    records = [Record(b"k", b"v", (), time) for time in times]
    client_named("confluent").produce(topic, 0, records, Settings())
    assert admin.list_offset(topic, 0, "max_timestamp") == 1


@pytest.mark.parametrize("admin", list(admins_with("describe_producers")), indirect=True)
def test_describe_producers(
    admin: Admin, client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    assert admin.describe_producers(topic, 0) == []
    records = [Record(b"k", b"%d" % i) for i in range(5)]
    client_named("confluent").produce(topic, 0, records, Settings(idempotent=True))
    (state,) = admin.describe_producers(topic, 0)
    assert state["last_sequence"] == 4
