"""Each client by itself: it reads back unchanged what it wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from clients.catalogue import CLIENTS
from clients.contract import OFFSETS, TIMESTAMP, Client, Record, Settings
from clients.sample import SAMPLES, large_record, sample_parameters

SOME_TIME = 1_700_000_000_000
SECOND = 1000

each_client = pytest.mark.parametrize("client", CLIENTS, indirect=True)


def contents(records: list[Record]) -> list[tuple[object, ...]]:
    return [record.content() for record in records]


def numbered(count: int) -> list[Record]:
    return [Record(b"key-%d" % (i % 7), b"value-%d" % i) for i in range(count)]


@pytest.mark.parametrize(
    ("client", "sample"),
    list(sample_parameters({name: kind.lacks for name, kind in CLIENTS.items()})),
    indirect=["client"],
)
def test_a_record_comes_back_as_it_was(
    client: Client, sample: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client.produce(topic, 0, [SAMPLES[sample]], Settings())
    (found,) = client.consume(topic, 0, 0, 1)
    assert found.content() == SAMPLES[sample].content()
    assert found.offset == 0


@pytest.mark.parametrize(
    ("client", "codec"),
    [(name, codec) for name, kind in CLIENTS.items() for codec in kind.codecs],
    indirect=["client"],
)
def test_every_codec(client: Client, codec: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    count = 5 if OFFSETS in client.lacks else 300
    records = [Record(b"key", b"compressible " * 50 + b"%d" % i) for i in range(count)]
    client.produce(topic, 0, records, Settings(codec=codec))
    assert contents(client.consume(topic, 0, 0, count)) == contents(records)


@each_client
def test_five_mebibytes(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    large = large_record()
    client.produce(topic, 0, [Record(b"before", b"-"), large, Record(b"after", b"-")], Settings())
    before, found, after = client.consume(topic, 0, 0, 3)
    assert found.content() == large.content()
    assert (before.key, after.key) == (b"before", b"after")


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(
            name,
            marks=pytest.mark.skip(reason=f"{name} cannot send {TIMESTAMP}")
            if TIMESTAMP in kind.lacks
            else (),
        )
        for name, kind in CLIENTS.items()
    ],
    indirect=True,
)
def test_explicit_timestamps(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    # Out of order on purpose: producers choose timestamps freely.
    times = [SOME_TIME, SOME_TIME + 5 * SECOND, SOME_TIME - SECOND]
    client.produce(topic, 0, [Record(b"k", b"v", (), time) for time in times], Settings())
    assert [record.timestamp for record in client.consume(topic, 0, 0, 3)] == times


@each_client
def test_the_broker_stamps_append_time(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    stale = None if TIMESTAMP in client.lacks else SOME_TIME
    client.produce(topic, 0, [Record(b"k", b"v", (), stale)], Settings())
    (found,) = client.consume(topic, 0, 0, 1)
    assert found.timestamp is not None
    assert found.timestamp > SOME_TIME + SECOND


@each_client
def test_seek_by_offset(
    client: Client, client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    records = numbered(100)
    client_named("confluent").produce(topic, 0, records, Settings(codec="lz4"))
    for offset in (0, 37, 99):
        found = client.consume(topic, 0, offset, min(5, 100 - offset))
        assert [record.offset for record in found] == list(range(offset, min(100, offset + 5)))
        assert found[0].value == records[offset].value


@each_client
def test_seek_by_time(
    client: Client, client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    records = [Record(b"k", b"%d" % i, (), SOME_TIME + i * SECOND) for i in range(30)]
    writer = client_named("confluent")
    for start in range(0, 30, 10):
        writer.produce(topic, 0, records[start : start + 10], Settings())
    exact = client.consume_from_time(topic, 0, SOME_TIME + 17 * SECOND, 1)
    between = client.consume_from_time(topic, 0, SOME_TIME + 17 * SECOND + 1, 1)
    before_all = client.consume_from_time(topic, 0, SOME_TIME - SECOND, 1)
    assert [found[0].offset for found in (exact, between, before_all)] == [17, 18, 0]


@each_client
def test_idempotence(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    records = numbered(4 if OFFSETS in client.lacks else 200)
    half = len(records) // 2
    settings = Settings(idempotent=True)
    offsets = client.produce(topic, 0, records[:half], settings)
    offsets += client.produce(topic, 0, records[half:], settings)
    if OFFSETS not in client.lacks:
        assert offsets == list(range(len(records)))
    assert contents(client.consume(topic, 0, 0, len(records))) == contents(records)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@each_client
def test_acks(client: Client, acks: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    records = numbered(3)
    offsets = client.produce(topic, 0, records, Settings(acks=acks))
    if acks != "0" and OFFSETS not in client.lacks:
        assert offsets == [0, 1, 2]
    assert contents(client.consume(topic, 0, 0, 3)) == contents(records)


@each_client
def test_each_partition_has_its_own_records(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    for partition in range(3):
        client.produce(topic, partition, [Record(b"k", b"%d" % partition)], Settings())
    found = [client.consume(topic, partition, 0, 1)[0] for partition in range(3)]
    assert [(record.value, record.offset) for record in found] == [(b"0", 0), (b"1", 0), (b"2", 0)]
