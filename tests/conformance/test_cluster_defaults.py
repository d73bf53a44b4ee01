"""Three broker processes with default settings: records of unmodified clients are safe.

The tests share the cluster and run in this order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from harness.process.broker_process import wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_client import RawClient, values_batch
from millstream.broker.config.resource import BROKER
from millstream.model.error import ErrorCode
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

pytestmark = pytest.mark.xdist_group("cluster-defaults")

SECONDS_MAX = 90.0
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
EXPECTED = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("defaults")) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: ProcessCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def create(admin: AdminClient, topic: NewTopic) -> None:
    for future in admin.create_topics([topic], request_timeout=SECONDS_MAX).values():
        future.result(SECONDS_MAX)


def produce(cluster: ProcessCluster, topic: str) -> KafkaError | None:
    """Send one record with acks=all; return its outcome."""
    alive = ",".join(broker.bootstrap for broker in cluster if broker.is_alive())
    producer = Producer({"bootstrap.servers": alive, "acks": "all"})
    outcomes: list[KafkaError | None] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(SECONDS_MAX)
    (error,) = outcomes
    return error


def replicas(admin: AdminClient, topic: str) -> set[int]:
    """Return the numbers of replicas of a topic's partitions."""
    found = admin.list_topics(topic, timeout=30).topics[topic]
    assert found.error is None, found.error
    return {len(partition.replicas) for partition in found.partitions.values()}


def setting(admin: AdminClient, kind: ResourceType, name: str, key: str) -> ConfigEntry:
    resource = ConfigResource(kind, name)
    (future,) = admin.describe_configs([resource], request_timeout=SECONDS_MAX).values()
    return future.result(SECONDS_MAX)[key]


def test_every_kind_of_topic_has_three_replicas_of_which_two_must_be_in_sync(
    cluster: ProcessCluster, admin: AdminClient
) -> None:
    create(admin, NewTopic("made", 3))
    assert produce(cluster, "auto") is None
    settings = {"bootstrap.servers": cluster.bootstrap}
    producer = Producer({**settings, "transactional.id": "x"})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("made", b"v")
    producer.commit_transaction(SECONDS_MAX)
    consumer = Consumer({**settings, "group.id": "g"})
    try:
        consumer.commit(offsets=[TopicPartition("made", 0, 1)], asynchronous=False)
    finally:
        consumer.close()
    for topic in ("made", "auto", OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        assert replicas(admin, topic) == {3}
        assert setting(admin, ResourceType.TOPIC, topic, "min.insync.replicas").value == "2"


def test_the_brokers_say_which_defaults_they_have(
    cluster: ProcessCluster, admin: AdminClient
) -> None:
    for node_id, broker in enumerate(cluster, start=1):
        for key, value in EXPECTED.items():
            found = setting(admin, ResourceType.BROKER, str(node_id), key)
            assert (found.value, found.source) == (str(value), ConfigSource.DEFAULT_CONFIG.value)
        # A broker that starts first logs smaller numbers before these.
        (*_, line) = [
            line for line in broker.log_text().splitlines() if "defaults for new topics" in line
        ]
        expected = ", ".join(f"{key}={value}" for key, value in EXPECTED.items())
        assert line.endswith(f"defaults for new topics: {expected} (number of brokers: 3)")


def test_dead_brokers_do_not_lower_the_number_of_replicas(cluster: ProcessCluster) -> None:
    cluster[3].kill()
    # A new client: a client whose controller is dead takes long to find another.
    bootstrap = f"{cluster[1].bootstrap},{cluster[2].bootstrap}"
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def is_known_dead() -> bool:
        try:
            return 3 not in admin.list_topics(timeout=5).brokers
        except KafkaException:
            return False

    wait_until(is_known_dead, "broker 3 to be taken for dead")
    create(admin, NewTopic("late", 1))
    assert replicas(admin, "late") == {3}
    assert produce(cluster, "late") is None
    cluster[2].kill()
    with RawClient(cluster[1].host, cluster[1].port) as client:
        wait_until(
            lambda: (
                client.produce("late", values_batch(b"v")).error_code
                == ErrorCode.NOT_ENOUGH_REPLICAS
            ),
            "the only broker left to reject acks=all",
        )
    for node_id in (2, 3):
        cluster[node_id].start()
    wait_until(lambda: produce(cluster, "late") is None, "two replicas in sync again")


def ask_for_two_in_sync(cluster: ProcessCluster) -> None:
    """Set `min.insync.replicas` to 2 for all brokers; librdkafka cannot do that."""
    rows = IncrementalAlterConfigsRequest.Resource
    resource = rows(
        resource_type=BROKER,
        resource_name="",
        configs=[rows.Config(name="min.insync.replicas", config_operation=0, value="2")],
    )
    with cluster.client() as client:
        (row,) = client.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert row.error_code == ErrorCode.NONE, row


def asks_for_two(admin: AdminClient, node_id: int) -> bool:
    found = setting(admin, ResourceType.BROKER, str(node_id), "min.insync.replicas")
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value
    return (found.value, found.source) == ("2", source)


def test_a_topic_with_one_replica_takes_acks_all_where_the_cluster_asks_for_two(
    cluster: ProcessCluster, admin: AdminClient
) -> None:
    ask_for_two_in_sync(cluster)
    wait_until(lambda: all(map(partial(asks_for_two, admin), (1, 2, 3))), "the setting")
    create(admin, NewTopic("one", 3, 1))
    # One partition on each broker, so that each must know the rule.
    for partition in range(3):
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        outcomes: list[KafkaError | None] = []
        producer.produce(
            "one",
            b"v",
            partition=partition,
            on_delivery=lambda error, _, to=outcomes: to.append(error),
        )
        producer.flush(SECONDS_MAX)
        assert outcomes == [None]
    # As in Kafka: the configured value is shown, not the effective one.
    assert setting(admin, ResourceType.TOPIC, "one", "min.insync.replicas").value == "2"
