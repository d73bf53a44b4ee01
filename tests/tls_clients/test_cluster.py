"""Three brokers that replicate over TLS with certificates on both sides."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer

from harness.process.broker_process import HOST, wait_until
from harness.process.brokers import REPLICATED, Brokers
from harness.process.process_cluster import ProcessCluster
from harness.process.tls_process import TlsHome, exchange, with_tls_listener

PARTITIONS = 6


def test_replication_survives_a_broker_that_is_killed(tmp_path: Path) -> None:
    tls = TlsHome(tmp_path / "tls")
    settings = {
        **REPLICATED,
        **tls.settings(ssl_client_auth="required"),
        "inter.broker.listener.name": "SSL",
    }
    cluster = ProcessCluster(tmp_path, 3, settings)
    ports = [with_tls_listener(broker) for broker in cluster]
    with cluster:
        brokers = Brokers({number: cluster[number] for number in (1, 2, 3)})
        brokers.wait_until_registered()
        brokers.create_topic("t", PARTITIONS)
        bootstrap = ",".join(f"{HOST}:{port}" for port in ports)
        properties = {"bootstrap.servers": bootstrap, **tls.properties("alice")}
        failed: list[object] = []
        producer = Producer({**properties, "acks": "all", "linger.ms": 5})

        def produce(start: int, count: int) -> None:
            for number in range(start, start + count):
                producer.produce(
                    "t",
                    str(number).encode(),
                    on_delivery=lambda error, _: error and failed.append(error),
                )
                producer.poll(0)

        produce(0, 3000)
        assert producer.flush(60) == 0
        brokers.wait_until_in_sync("t")
        brokers.kill(brokers.leader_id("t"))
        produce(3000, 3000)
        assert producer.flush(60) == 0
        assert not failed
        dead = next(each for each in brokers.node_ids if not brokers[each].is_alive())
        brokers.start(dead)
        brokers.wait_until_in_sync("t")
        consumer = Consumer({**properties, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found: list[int] = []
        while len(found) < 6000:
            found += [int(message.value()) for message in consumer.consume(1000, 30)]
        consumer.close()
        assert sorted(found) == list(range(6000))
        for port in ports:
            assert exchange(port, tls.context()) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        brokers.check_logs()
        brokers.stop()


def test_brokers_reject_a_host_name_that_the_certificate_does_not_have(tmp_path: Path) -> None:
    tls = TlsHome(tmp_path / "tls")
    tls.authority.issue("broker", hosts=["elsewhere.example"], days=2)
    settings = {**tls.settings(), "inter.broker.listener.name": "SSL"}
    cluster = ProcessCluster(tmp_path, 2, settings)
    for broker in cluster:
        with_tls_listener(broker)
    with cluster:
        wait_until(
            lambda: any("certificate is not valid for" in each.log_text() for each in cluster),
            "a rejected certificate",
        )
