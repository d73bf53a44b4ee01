"""Produce over the wire: acknowledged and rejected batches, and idempotent producers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient, produce_request, values_batch
from millstream.model.error import ErrorCode
from millstream.records.batch import read_header, stamp_crc
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import ProduceRequest

NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("produce")
    with BrokerProcess(folder, {"auto.create.topics.enable": False}) as process:
        yield process


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    client.create_topic(name, configs={"max.message.bytes": 20_000})
    return name


def values_in(client: RawClient, topic: str) -> list[bytes | None]:
    return [record.value for record in client.read_all(topic)]


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends(client: RawClient, topic: str, version: int) -> None:
    topic_id = client.topic_id(topic)
    for expected in (0, 2):
        request = produce_request(topic, values_batch(b"a", b"b"), topic_id=topic_id)
        response = client.call(request, version)
        (row,) = response.responses[0].partition_responses
        assert (row.error_code, row.base_offset, row.log_append_time_ms) == (0, expected, -1)
        assert response.responses[0].name == (topic if version < 13 else "")
        assert response.responses[0].topic_id == (topic_id if version >= 13 else bytes(16))
    assert values_in(client, topic) == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_compressed_batches_pass_through_untouched(
    client: RawClient, topic: str, codec: CompressionType
) -> None:
    batch = values_batch(b"a" * 500, b"b" * 500, codec=codec)
    assert client.produce(topic, batch).error_code == 0
    stored = bytes(client.fetch(topic, 0).records)
    assert stored[16:] == bytes(batch)[16:]
    assert stored[:8] == bytes(8)


def test_zstd_needs_version_7(client: RawClient, topic: str) -> None:
    batch = values_batch(b"a", codec=CompressionType.ZSTD)
    code = client.produce(topic, batch, version=6).error_code
    assert code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, batch, version=7).error_code == 0


def test_topic_and_partition_must_exist(client: RawClient, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("nowhere", values_batch(b"a")).error_code == unknown
    assert client.produce(topic, values_batch(b"a"), 1).error_code == unknown
    assert client.produce(topic, values_batch(b"a"), -1).error_code == unknown
    by_id = produce_request("", values_batch(b"a"), topic_id=b"\x07" * 16)
    (row,) = client.call(by_id, 13).responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


def test_acks_must_be_known(client: RawClient, topic: str) -> None:
    for acks in (2, -2, 32767):
        row = client.produce(topic, values_batch(b"a"), acks=acks)
        assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert values_in(client, topic) == []


def _broken_crc() -> bytearray:
    batch = values_batch(b"a", b"b")
    batch[-1] ^= 1
    return batch


def _patched(position: int, new: bytes) -> bytearray:
    """Return a batch with some header bytes overwritten and a matching CRC."""
    batch = values_batch(b"a", b"b")
    batch[position : position + len(new)] = new
    stamp_crc(batch, 0, len(batch))
    return batch


REFUSED = {
    "crc": (_broken_crc(), ErrorCode.CORRUPT_MESSAGE),
    "nothing": (None, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "cut-off": (values_batch(b"a")[:-1], ErrorCode.INVALID_RECORD),
    "two-batches": (values_batch(b"a") + values_batch(b"b"), ErrorCode.INVALID_RECORD),
    "trailing-byte": (values_batch(b"a") + b"\0", ErrorCode.INVALID_RECORD),
    "magic-1": (_patched(16, b"\1"), ErrorCode.INVALID_RECORD),
    "magic-9": (_patched(16, b"\x09"), ErrorCode.CORRUPT_MESSAGE),
    "too-large": (values_batch(bytes(30_000)), ErrorCode.MESSAGE_TOO_LARGE),
    "codec-5": (_patched(21, b"\0\5"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "append-time": (_patched(21, b"\0\x08"), ErrorCode.INVALID_TIMESTAMP),
    "control": (_patched(21, b"\0\x20"), ErrorCode.INVALID_RECORD),
    "count": (_patched(57, b"\0\0\0\3"), ErrorCode.INVALID_RECORD),
    "count-0": (_patched(57, b"\0\0\0\0"), ErrorCode.INVALID_RECORD),
    "negative-count": (_patched(57, b"\xff\xff\xff\xff"), ErrorCode.INVALID_RECORD),
    "sequence": (_patched(43, b"\0" * 8 + b"\0\0" + b"\xff" * 4), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_batches_are_rejected_and_not_appended(
    client: RawClient, topic: str, what: str
) -> None:
    batch, expected = REFUSED[what]
    row = client.produce(topic, batch)
    assert (ErrorCode(row.error_code), row.base_offset) == (expected, -1)
    assert row.error_message
    assert client.produce(topic, values_batch(b"good")).base_offset == 0
    assert values_in(client, topic) == [b"good"]


def test_a_bad_partition_does_not_affect_the_others(client: RawClient) -> None:
    client.create_topic("neighbours", 3)
    partition = ProduceRequest.Topic.Partition
    request = produce_request("neighbours", values_batch(b"zero"))
    request.topic_data[0].partition_data += [
        partition(index=1, records=_broken_crc()),
        partition(index=2, records=values_batch(b"two")),
    ]
    rows = client.call(request, 12).responses[0].partition_responses
    assert [row.error_code for row in rows] == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    assert [len(client.read_all("neighbours", number)) for number in range(3)] == [1, 0, 1]


def test_acks_0_has_no_response_and_a_failure_closes_the_connection(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    client.send(produce_request(topic, values_batch(b"a"), acks=0), 12, has_response=False)
    assert values_in(client, topic) == [b"a"]
    with RawClient(broker.host, broker.port) as other:
        other.send(produce_request(topic, _broken_crc(), acks=0), 12, has_response=False)
        assert other.is_closed_within(10)
    assert values_in(client, topic) == [b"a"]


def test_transactional_batches_without_a_transaction_are_rejected(
    client: RawClient, topic: str
) -> None:
    batch = values_batch(
        b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    row = client.produce(topic, bytearray(batch))
    assert row.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert row.error_message
    request = produce_request(topic, batch)
    request.transactional_id = "bank"
    row = client.call(request, 12).responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert row.error_message
    assert values_in(client, topic) == []


def test_records_without_keys_are_rejected_by_compacted_topics(client: RawClient) -> None:
    client.create_topic("keyed", configs={"cleanup.policy": "compact"})
    assert client.produce("keyed", values_batch(b"a")).error_code == ErrorCode.INVALID_RECORD
    keyed = build_batch([Record(0, NOW_MS, b"k", b"v", [])], codec=CompressionType.LZ4)
    assert client.produce("keyed", keyed).error_code == 0
    assert [record.key for record in client.read_all("keyed")] == [b"k"]


def test_log_append_time_is_set_by_the_broker(client: RawClient) -> None:
    client.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    row = client.produce("stamped", values_batch(b"a", b"b", timestamp=5))
    assert before_ms <= row.log_append_time_ms <= time.time() * 1000
    stored = read_header(client.fetch("stamped", 0).records)
    assert stored.is_append_time
    assert stored.max_timestamp == row.log_append_time_ms
    times = {record.timestamp for record in client.read_all("stamped")}
    assert times == {row.log_append_time_ms}


def test_timestamps_outside_of_the_limits_of_the_topic_are_rejected(client: RawClient) -> None:
    limits = {"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 1000}
    client.create_topic("punctual", configs=limits)
    for timestamp in (NOW_MS - 3_600_000, NOW_MS + 3_600_000):
        row = client.produce("punctual", values_batch(b"a", timestamp=timestamp))
        assert row.error_code == ErrorCode.INVALID_TIMESTAMP


# Idempotent producers


def new_producer(client: RawClient) -> int:
    response = client.call(InitProducerIdRequest())
    assert (response.error_code, response.producer_epoch) == (0, 0)
    return int(response.producer_id)


def sequenced(producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    return values_batch(
        *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def test_every_producer_gets_another_id(client: RawClient) -> None:
    ids = {new_producer(client) for _ in range(50)}
    assert len(ids) == 50


def test_the_response_to_a_duplicate_has_the_offset_of_the_first_batch(
    client: RawClient, topic: str
) -> None:
    producer = new_producer(client)
    batches = [sequenced(producer, 2 * n, b"%d" % n, b"-") for n in range(5)]
    for expected, batch in enumerate(batches):
        assert client.produce(topic, bytearray(batch)).base_offset == 2 * expected
    assert client.produce(topic, values_batch(b"other")).base_offset == 10
    for expected, batch in enumerate(batches):
        row = client.produce(topic, bytearray(batch))
        assert (row.error_code, row.base_offset) == (0, 2 * expected)
    assert len(values_in(client, topic)) == 11


def test_a_gap_in_the_sequence_is_rejected(client: RawClient, topic: str) -> None:
    producer = new_producer(client)
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce(topic, sequenced(producer, 0, b"a")).error_code == 0
    assert client.produce(topic, sequenced(producer, 2, b"c")).error_code == out_of_order
    assert client.produce(topic, sequenced(producer, 1, b"b")).error_code == 0
    assert client.produce(topic, sequenced(producer, 2, b"c")).error_code == 0
    assert values_in(client, topic) == [b"a", b"b", b"c"]


def test_sequences_wrap_around(client: RawClient, topic: str) -> None:
    producer = new_producer(client)
    assert client.produce(topic, sequenced(producer, 2**31 - 2, b"a", b"b", b"c")).error_code == 0
    assert client.produce(topic, sequenced(producer, 1, b"d")).error_code == 0
    row = client.produce(topic, sequenced(producer, 2**31 - 2, b"a", b"b", b"c"))
    assert (row.error_code, row.base_offset) == (0, 0)
    assert len(values_in(client, topic)) == 4


def test_an_older_epoch_is_fenced(client: RawClient, topic: str) -> None:
    producer = new_producer(client)
    assert client.produce(topic, sequenced(producer, 0, b"a")).error_code == 0
    row = client.produce(topic, sequenced(producer, 7, b"x", epoch=1))
    assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce(topic, sequenced(producer, 0, b"b", epoch=1)).error_code == 0
    row = client.produce(topic, sequenced(producer, 1, b"x"))
    assert row.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert values_in(client, topic) == [b"a", b"b"]


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_producer_state_survives_a_restart(tmp_path: Path, how: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("kept")
            producer = new_producer(client)
            for n in range(3):
                assert client.produce("kept", sequenced(producer, n, b"%d" % n)).error_code == 0
        broker.stop() if how == "clean" else broker.kill()
        broker.start()
        with RawClient(broker.host, broker.port) as client:
            row = client.produce("kept", sequenced(producer, 2, b"2"))
            assert (row.error_code, row.base_offset) == (0, 2)
            row = client.produce("kept", sequenced(producer, 4, b"4"))
            assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert client.produce("kept", sequenced(producer, 3, b"3")).base_offset == 3
            assert new_producer(client) > producer
            assert values_in(client, "kept") == [b"0", b"1", b"2", b"3"]


def test_a_malformed_request_closes_only_its_connection(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    with RawClient(broker.host, broker.port) as other:
        other.send_raw(b"\0\0\0\x0c\0\0\0\x0b\0\0\0\1\0\0garb")
        assert other.is_closed_within(10)
    with RawClient(broker.host, broker.port) as other:
        other.send_raw(b"\x7f\xff\xff\xff")
        assert other.is_closed_within(10)
    assert client.produce(topic, values_batch(b"a")).error_code == 0


def test_a_topic_with_flush_messages_acknowledges_every_batch(client: RawClient) -> None:
    client.create_topic("flushing", configs={"flush.messages": 3})
    for acks in (1, -1):
        for _ in range(100):
            for _ in range(4):
                client.send(produce_request("flushing", values_batch(b"x"), acks=acks), 12)
            rows = [client.receive().responses[0].partition_responses[0] for _ in range(4)]
            assert [row.error_code for row in rows] == [0] * 4
