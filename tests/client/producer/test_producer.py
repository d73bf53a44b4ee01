"""Sending: deliveries, failures, and the messages of errors."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from harness.process.broker_process import free_port, wait_until
from millstream.client import (
    BufferFull,
    ClosedError,
    Consumer,
    DeliveryError,
    JsonSerializer,
    Producer,
    Record,
    SerializationError,
    TimedOut,
    UsageError,
)
from millstream.client.producer.partitioner import by_key


def read(bootstrap: str, topic: str, count: int) -> list[Record]:
    found: list[Record] = []
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while len(found) < count:
            found += consumer.poll(timeout=60)
    return found


def test_a_record_arrives_with_all_its_fields(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        headers = [("trace", b"1"), ("trace", "2"), ("none", None)]
        metadata = producer.send(
            topic, "äpfel", key="alice", headers=headers, partition=0, timestamp=1_700_000_000_000
        ).result(60)
    assert metadata == (topic, 0, 0, 1_700_000_000_000)
    (record,) = read(bootstrap, topic, 1)
    assert (record.key, record.value) == (b"alice", "äpfel".encode())
    assert record.headers == [("trace", b"1"), ("trace", b"2"), ("none", None)]
    assert record.header("trace") == b"2"
    assert record.header("other") is None
    assert (record.topic, record.partition, record.offset) == (topic, 0, 0)
    assert record.timestamp == 1_700_000_000_000


def test_the_end_of_the_block_delivers_pending_records(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, linger_ms=1000) as producer:
        deliveries = [producer.send(topic, str(number)) for number in range(1000)]
    assert [each.result(0).offset for each in deliveries] == list(range(1000))


def test_a_program_that_does_not_close_loses_no_record(bootstrap: str, topic: str) -> None:
    program = (
        "import sys\n"
        "from millstream import Producer\n"
        "producer = Producer(sys.argv[1], linger_ms=500)\n"
        "for number in range(100):\n"
        "    producer.send(sys.argv[2], str(number))\n"
    )
    subprocess.run([sys.executable, "-c", program, bootstrap, topic], check=True, timeout=120)
    assert [int(record.value) for record in read(bootstrap, topic, 100)] == list(range(100))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(bootstrap: str, topic: str, acks: object) -> None:
    with Producer(bootstrap, acks=acks) as producer:  # type: ignore[arg-type]
        metadata = producer.send(topic, b"x").result(60)
    assert metadata.partition == 0
    assert metadata.offset == (-1 if acks == 0 else 0)
    assert len(read(bootstrap, topic, 1)) == 1


def test_keys_go_to_the_partitions_of_the_java_client(bootstrap: str, wide_topic: str) -> None:
    keys = [f"key-{number}".encode() for number in range(50)]
    with Producer(bootstrap) as producer:
        sent = {key: producer.send(wide_topic, b"", key=key) for key in keys}
    assert {key: each.result().partition for key, each in sent.items()} == {
        key: by_key(key, 4) for key in keys
    }


def test_round_robin_and_functions_choose(bootstrap: str, wide_topic: str) -> None:
    with Producer(bootstrap, partitioner="round_robin") as producer:
        turns = [producer.send(wide_topic, b"", key="same") for _ in range(8)]
    assert [each.result().partition for each in turns] == [0, 1, 2, 3] * 2

    def by_length(key: bytes | None, partitions: int) -> int:
        return len(key or b"") % partitions

    with Producer(bootstrap, partitioner=by_length) as producer:
        chosen = [producer.send(wide_topic, b"", key="k" * length) for length in range(1, 4)]
    assert [each.result().partition for each in chosen] == [1, 2, 3]
    with (
        Producer(bootstrap, partitioner=lambda _key, count: count) as producer,
        pytest.raises(UsageError, match=r"chose 4 for topic .* partitions 0 to 3"),
    ):
        producer.send(wide_topic, b"", key="k")


def test_serializers_on_both_sides(bootstrap: str, topic: str) -> None:
    json = JsonSerializer()
    with Producer(bootstrap, key_serializer=json, value_serializer=json) as producer:
        producer.send(topic, {"apples": 2}, key=["a", 1])
        producer.send(topic, None, key=["a", 1])
        with pytest.raises(SerializationError, match=r"value for topic .*, a set, cannot be enc"):
            producer.send(topic, {1, 2})
    with Producer(bootstrap) as producer:
        producer.send(topic, b"{not json")
    with Consumer(
        bootstrap, topics=[topic], key_deserializer=json, value_deserializer=json
    ) as reader:
        found: list[Record] = []
        while len(found) < 3:
            found += reader.poll(timeout=60)
    assert (found[0].key, found[0].value) == (["a", 1], {"apples": 2})
    assert found[1].value is None
    with pytest.raises(SerializationError, match="at offset 2 cannot be decoded"):
        _ = found[2].value
    assert found[2].raw_value == b"{not json"


def test_callbacks_are_called_without_a_waiting_thread(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        heard: list[int] = []
        nested: list[BaseException] = []

        def listen(delivery: object) -> None:
            heard.append(first.result(0).offset)
            try:
                producer.send(topic, b"more").result()
            except UsageError as error:
                nested.append(error)

        first = producer.send(topic, b"x")
        first.add_done_callback(listen)
        wait_until(lambda: nested, "the callback", 60)
        assert heard == [0]
        assert "cannot wait" in str(nested[0])
        first.add_done_callback(lambda delivery: heard.append(7))
        assert heard == [0, 7]


def test_several_threads_wait_at_once(bootstrap: str, topic: str) -> None:
    offsets: list[int] = []
    with Producer(bootstrap, linger_ms=0) as producer:

        def send() -> None:
            offsets.extend(producer.send(topic, b"x").result(60).offset for _ in range(20))

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(160))


def test_a_full_buffer_waits_then_raises() -> None:
    producer = Producer(f"127.0.0.1:{free_port()}", buffer_records=10, buffer_timeout=0.2)
    deliveries = [producer.send("any", b"x") for _ in range(10)]
    with pytest.raises(BufferFull, match=r"10 records wait .* 0.2 s"):
        producer.send("any", b"x")
    assert not deliveries[0].done()
    with pytest.raises(TimedOut):
        deliveries[0].result(0.05)
    with pytest.raises(TimedOut, match="10 records are not delivered"):
        producer.close(0.1)
    with pytest.raises(DeliveryError, match="_PURGE_QUEUE"):
        deliveries[0].result(0)


def test_a_full_buffer_waits_for_room(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, buffer_records=10) as producer:
        deliveries = [producer.send(topic, b"x") for _ in range(500)]
    assert [each.result().offset for each in deliveries] == list(range(500))


def test_failures_are_raised_once(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, delivery_timeout=30) as producer:
        with pytest.raises(DeliveryError, match="UNKNOWN_PARTITION") as caught:
            producer.send(topic, b"x", partition=77).result(60)
        assert caught.value.name == "_UNKNOWN_PARTITION"
        producer.flush()
    with Producer(bootstrap, delivery_timeout=30) as producer:
        producer.send(topic, b"x", partition=77)
        with pytest.raises(
            DeliveryError, match="1 records whose deliveries were not checked failed"
        ):
            producer.flush()
        producer.flush()


def test_wrong_use_is_explained(bootstrap: str, topic: str) -> None:
    producer = Producer(bootstrap)
    with pytest.raises(SerializationError, match=r"value .* is a dict: pass bytes.*JsonSerializer"):
        producer.send(topic, {"a": 1})
    with pytest.raises(SerializationError, match=r"key .* is a int"):
        producer.send(topic, b"", key=7)
    with pytest.raises(UsageError, match="topic is None"):
        producer.send(None, b"")  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match="Headers are pairs"):
        producer.send(topic, b"", headers=[("a", 1)])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="takes topic and value by position"):
        producer.send(topic, b"key", b"value")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="need a producer with transactional_id"):
        producer.transaction()
    producer.close()
    producer.close()
    with pytest.raises(ClosedError, match="producer is closed"):
        producer.send(topic, b"")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"linger": 5}, "no option 'linger': did you mean 'linger_ms'"),
        ({"compression_type": "zip"}, "compression_type='zip' is unknown: use one of none, gzip"),
        ({"acks": 2}, "acks=2 is unknown: use 'all', 1 or 0"),
        ({"transactional_id": "a", "acks": 1}, "needs acks='all'"),
        ({"batch_size": 0}, "batch_size=0 is out of range"),
        ({"partitioner": "sticky"}, "partitioner='sticky' is unknown"),
        ({"transactional_id": "a", "enable_idempotence": False}, "needs enable_idempotence=True"),
        ({"config": {"no.such": 1}}, "settings are wrong: No such configuration property"),
    ],
)
def test_invalid_options_are_explained(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Producer("127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_the_repr_of_a_delivery(bootstrap: str, name: Callable[[str], str]) -> None:
    with Producer(bootstrap, linger_ms=100) as producer:
        delivery = producer.send(name("made-by-sending"), b"x")
        assert repr(delivery) == "<Delivery pending>"
        delivery.result(60)
        assert repr(delivery) == "<Delivery done>"
