"""`kill -9` while producers send: every acknowledged record is in the log, once and in order.

CRASH_SEED repeats the moments of the kills (not the producers' timing). CRASH_ROUNDS sets the
length of the soak.
"""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from crash.killing import crash
from crash.traffic import Target, Traffic, parse_value
from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import Closed, OutOfRangeError, RawClient, values_batch
from harness.seed import choose_seed, report
from millstream.records.record import Record
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.metadata import MetadataRequest

ROUNDS_QUICK = 6
ROUNDS_SOAK = int(os.environ.get("CRASH_ROUNDS", "100"))
SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 100,
    "log.cleaner.backoff.ms": 20,
}
#: Topics with their partitions and configs. Some of them roll and flush segments all the time.
TOPICS: dict[str, tuple[int, dict[str, object]]] = {
    "plain": (3, {}),
    "rolling": (2, {"segment.bytes": 1_048_576 // 16}),
    "flushed": (2, {"flush.messages": 50}),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime"}),
}
TARGETS: list[Target] = [
    (topic, number) for topic, (count, _) in TOPICS.items() for number in range(count)
]
rounds = pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(ROUNDS_QUICK, id="quick"),
        pytest.param(ROUNDS_SOAK, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)


def check_partition(
    records: list[Record], target: Target, producers: list[Traffic], first: int
) -> None:
    """Check all records from offset `first`: no gaps, each producer's records in order and once."""
    assert [record.offset for record in records] == list(range(first, first + len(records)))
    numbers: dict[str, list[int]] = defaultdict(list)
    by_offset = {}
    for record in records:
        producer, number = parse_value(record.value)
        numbers[producer].append(number)
        by_offset[record.offset] = (producer, number)
    for traffic in producers:
        found = numbers.pop(traffic.name, [])
        assert found == sorted(set(found)), f"{traffic.name} in {target}: twice or out of order"
        acknowledged = traffic.acknowledged_since(target, first)
        missing = acknowledged.keys() - set(found)
        assert not missing, f"{traffic.name} in {target}: {len(missing)} acknowledged are lost"
        wrong = {
            number: offset
            for number, offset in acknowledged.items()
            if offset is not None and by_offset[offset] != (traffic.name, number)
        }
        assert not wrong, f"{traffic.name} in {target}: not where they were acknowledged: {wrong}"
    assert not numbers, f"records of nobody: {list(numbers)}"


@rounds
def test_acknowledged_records_survive(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(choose_seed("CRASH_SEED"))
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        with RawClient(broker.host, broker.port) as client:
            for topic, (count, configs) in TOPICS.items():
                client.create_topic(topic, count, configs)
        producers = [
            Traffic("once-lz4", broker.bootstrap, TARGETS, codec="lz4", idempotent=True),
            Traffic("once-none", broker.bootstrap, TARGETS, codec="none", idempotent=True),
            Traffic("once-zstd", broker.bootstrap, TARGETS, codec="zstd", idempotent=True),
            Traffic("leader-gzip", broker.bootstrap, TARGETS, codec="gzip", idempotent=False),
            Traffic("leader-snappy", broker.bootstrap, TARGETS, codec="snappy", idempotent=False),
        ]
        seen: dict[Target, int] = defaultdict(int)
        for _ in range(rounds):
            for traffic in producers:
                traffic.start()
            try:
                crash(broker, chance)
            finally:
                for traffic in producers:
                    traffic.stop()
            with RawClient(broker.host, broker.port) as client:
                for target in TARGETS:
                    topic, partition = target
                    records = client.read_all(topic, partition, seen[target])
                    check_partition(records, target, producers, seen[target])
                    seen[target] += len(records)
        acknowledged = sum(len(a) for each in producers for a in each.acknowledged.values())
        report(f"{rounds} kills, {acknowledged} acknowledged, {sum(seen.values())} stored")
        assert "Traceback" not in broker.log_text()


COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": 16_384,
    "min.cleanable.dirty.ratio": 0.01,
    "file.delete.delay.ms": 0,
    "delete.retention.ms": 0,
}
RETAINED = {"retention.bytes": 65_536, "segment.bytes": 16_384, "file.delete.delay.ms": 0}


def check_compacted(records: list[Record], traffic: Traffic, target: Target) -> None:
    """Check that the last value of each key is the last acknowledged one, or was sent after
    that."""
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    last: dict[bytes, int] = {}
    for record in records:
        assert record.key is not None
        producer, number = parse_value(record.value)
        assert producer == traffic.name
        assert number > last.get(record.key, -1), "an older value came after a newer one"
        last[record.key] = number
    for key, number in traffic.last_of_key[target].items():
        assert last.get(key, -1) >= number, f"key {key!r} fell back from {number}"


def check_retained(records: list[Record], traffic: Traffic, target: Target) -> None:
    """Check that the remaining records are the end of what was written, without gaps."""
    assert records
    first = records[0].offset
    check_partition(records, target, [traffic], first)


@rounds
def test_compaction_and_retention_can_be_killed(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(choose_seed("CRASH_SEED"))
    compacted: list[Target] = [("compacted", 0), ("compacted", 1)]
    retained: list[Target] = [("retained", 0), ("retained", 1)]
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("compacted", 2, COMPACTED)
            client.create_topic("retained", 2, RETAINED)
        keyed = Traffic(
            "keyed", broker.bootstrap, compacted, codec="lz4", idempotent=True, keys=300
        )
        plain = Traffic("plain", broker.bootstrap, retained, codec="none", idempotent=True)
        for _ in range(rounds):
            keyed.start()
            plain.start()
            try:
                crash(broker, chance)
            finally:
                keyed.stop()
                plain.stop()
            stored = 0
            with RawClient(broker.host, broker.port) as client:
                for topic, partition in compacted:
                    records = client.read_all(topic, partition)
                    stored += len(records)
                    check_compacted(records, keyed, (topic, partition))
                for topic, partition in retained:
                    records = read_retained(client, topic, partition)
                    check_retained(records, plain, (topic, partition))
        report(f"{rounds} kills, {sum(keyed.sent.values())} keyed records sent, {stored} left")
        assert stored < sum(keyed.sent.values()), "nothing was ever compacted"
        assert "Traceback" not in broker.log_text()


def read_retained(client: RawClient, topic: str, partition: int) -> list[Record]:
    """Return all records from the log start, which retention may move meanwhile."""
    for _ in range(20):
        start = client.list_offset(topic, -2, partition).offset
        try:
            return client.read_all(topic, partition, start)
        except OutOfRangeError:
            continue
    raise AssertionError(f"the start of {topic}-{partition} never stands still")


def test_acknowledged_topic_changes_survive(tmp_path: Path) -> None:
    """A client creates, writes and deletes topics until the broker is killed."""
    chance = random.Random(choose_seed("CRASH_SEED"))
    generation: dict[str, int] = {}
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        for _ in range(3):
            timer = threading.Timer(chance.uniform(0.05, 0.5), broker.kill)
            timer.start()
            unsure = _change_topics(broker, chance, generation)
            timer.join()
            broker.start()
            with RawClient(broker.host, broker.port) as client:
                rows = client.call(MetadataRequest(topics=None)).topics
                present = {row.name for row in rows}
                assert present - {unsure} == generation.keys() - {unsure}
                for name, number in generation.items():
                    if name != unsure:
                        values = [record.value for record in client.read_all(name)]
                        assert values == [b"%d" % number]
                if unsure in present:
                    client.call(DeleteTopicsRequest(topic_names=[unsure]), 5)
                generation.pop(unsure, None)
        assert "Traceback" not in broker.log_text()


def _change_topics(broker: BrokerProcess, chance: random.Random, generation: dict[str, int]) -> str:
    """Change topics until the connection breaks; return the topic that was being changed."""
    name = ""
    number = 0
    try:
        with RawClient(broker.host, broker.port) as client:
            while True:
                name = f"topic-{chance.randrange(8)}"
                number += 1
                if name in generation:
                    client.call(DeleteTopicsRequest(topic_names=[name]), 5)
                    del generation[name]
                else:
                    client.create_topic(name)
                    client.produce(name, values_batch(b"%d" % number), acks=1)
                    generation[name] = number
    except Closed:
        return name
