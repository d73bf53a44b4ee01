"""Batches with some bad records: like Kafka, the Produce response names them (KIP-467)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.kafka_process import kafka_broker
from harness.raw.bad_batch import CASES, COMPACTED, KEY, Case, batch_of
from harness.raw.raw_client import PRODUCE_BY_NAME, RawClient, produce_request
from harness.raw.raw_transaction import RawProducer, committed_values, find_coordinator
from millstream.model.error import ErrorCode
from millstream.records.batch import read_header
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import ProduceRequest

Row = Any
_NAMED_MAX = 10_000
_MESSAGES_MAX = 1_000
_NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("record-errors")) as process:
        yield process


@pytest.fixture(scope="module")
def kafka() -> Iterator[RawClient]:
    with kafka_broker() as process:
        process.start()
        host, _, port = process.bootstrap.rpartition(":")
        with RawClient(host, int(port)) as connection:
            yield connection


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def compacted(client: RawClient, topic: str) -> str:
    client.create_topic(topic, configs=COMPACTED)
    return topic


def _takes_one(client: RawClient, topic: str) -> bool:
    """Produce a good record, unless the broker does not know the topic yet."""
    row = client.produce(topic, batch_of((0, KEY)))
    assert row.error_code in (ErrorCode.NONE, *_NOT_YET), row
    return bool(row.error_code == ErrorCode.NONE)


def _indexes(row: Row) -> list[int]:
    return [error.batch_index for error in row.record_errors]


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_bad_records_are_named(client: RawClient, topic: str, case: Case) -> None:
    client.create_topic(topic, configs=case.configs)
    assert client.produce(topic, batch_of((0, KEY))).error_code == 0
    row = client.produce(topic, case.make())
    if case.error is None:
        assert (row.error_code, row.base_offset, row.error_message) == (0, 1, None)
    else:
        assert row.error_code == ErrorCode[case.error]
        assert (row.base_offset, row.log_start_offset) == (-1, 0)
        assert row.error_message
        assert len(client.read_all(topic)) == 1
    assert _indexes(row) == list(case.bad)
    assert all(error.batch_index_error_message for error in row.record_errors)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_kafka_responds_the_same(
    client: RawClient, kafka: RawClient, topic: str, case: Case
) -> None:
    """Compare all fields but the messages. For a batch that is bad as a whole Kafka has no
    message."""
    rows: list[Row] = []
    for each in (client, kafka):
        each.create_topic(topic, configs=case.configs)
        # Kafka's broker knows a new topic only a moment after its creation.
        wait_until(lambda each=each: _takes_one(each, topic), f"{topic} to be known")
        rows.append(each.produce(topic, case.make()))
    ours, theirs = rows
    if case.bad or case.error is None:
        assert (ours.error_message is None) == (theirs.error_message is None)
    for row in rows:
        assert all(error.batch_index_error_message for error in row.record_errors)
        for error in row.record_errors:
            error.batch_index_error_message = None
        row.error_message = None
        if row.log_append_time_ms != -1:
            row.log_append_time_ms = 0
    assert ours == theirs
    stored = [
        [(record.offset, record.key, record.value) for record in each.read_all(topic)]
        for each in (client, kafka)
    ]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version(client: RawClient, compacted: str, version: int) -> None:
    batch = batch_of((0, KEY), (0, None))
    request = produce_request(compacted, batch, topic_id=client.topic_id(compacted))
    (row,) = client.call(request, version).responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert _indexes(row) == ([1] if version >= 8 else [])
    assert (row.error_message is not None) == (version >= 8)


def test_the_other_partitions_are_not_affected(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 3, configs=COMPACTED)
    partition = ProduceRequest.Topic.Partition
    request = produce_request(topic, batch_of((0, KEY)))
    request.topic_data[0].partition_data += [
        partition(index=1, records=batch_of((0, KEY), (0, None))),
        partition(index=2, records=batch_of((0, None), (0, KEY))),
    ]
    rows = client.call(request, PRODUCE_BY_NAME).responses[0].partition_responses
    assert [row.error_code for row in rows] == [0, *[ErrorCode.INVALID_RECORD] * 2]
    assert [_indexes(row) for row in rows] == [[], [1], [0]]
    assert [len(client.read_all(topic, number)) for number in range(3)] == [1, 0, 0]


def test_acks_0_closes_the_connection(broker: BrokerProcess, compacted: str) -> None:
    with RawClient(broker.host, broker.port) as other:
        request = produce_request(compacted, batch_of((0, None)), acks=0)
        other.send(request, PRODUCE_BY_NAME, has_response=False)
        assert other.is_closed_within(10)


def test_the_number_of_named_records_is_limited(client: RawClient, topic: str) -> None:
    """A batch of a few hundred bytes can have very many bad records, and a request very many such
    batches."""
    client.create_topic(topic, 4, configs=COMPACTED)
    records = [Record(index, 0, None, b"", []) for index in range(8000)]
    batch = build_batch(records, codec=CompressionType.ZSTD)
    assert len(batch) < 40_000
    request = produce_request(topic, bytearray(batch))
    request.topic_data[0].partition_data += [
        ProduceRequest.Topic.Partition(index=index, records=bytearray(batch))
        for index in range(1, 4)
    ]
    rows = client.call(request, PRODUCE_BY_NAME).responses[0].partition_responses
    assert [row.error_code for row in rows] == [ErrorCode.INVALID_RECORD] * 4
    assert [len(row.record_errors) for row in rows] == [8000, _NAMED_MAX - 8000, 0, 0]
    assert all(row.error_message.startswith("8000 of 8000 records") for row in rows)
    messages = [error.batch_index_error_message for error in rows[0].record_errors]
    assert all(messages[:_MESSAGES_MAX])
    assert not any(messages[_MESSAGES_MAX:])


# Idempotent producers


class _Idempotent:
    """Produces records with keys, or bad ones without, with any sequence and epoch."""

    def __init__(self, client: RawClient, topic: str) -> None:
        response = client.call(InitProducerIdRequest(), 4)
        assert response.error_code == 0
        self._id = response.producer_id
        self._client = client
        self._topic = topic

    def send(self, sequence: int, *, bad: bool = False, epoch: int = 0) -> Row:
        batch = batch_of(
            (0, None if bad else KEY),
            producer_id=self._id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return self._client.produce(self._topic, batch)

    def codes(self, *sequences: int, epoch: int = 0) -> list[int]:
        return [self.send(sequence, epoch=epoch).error_code for sequence in sequences]


def test_a_rejected_batch_uses_no_sequence(client: RawClient, compacted: str) -> None:
    producer = _Idempotent(client, compacted)
    assert producer.codes(0) == [0]
    for _ in range(2):
        row = producer.send(1, bad=True)
        assert (row.error_code, _indexes(row)) == (ErrorCode.INVALID_RECORD, [0])
    # The batches after it, and the same batches in a new epoch, as Java's producer sends them.
    assert producer.codes(2, 3) == [_OUT_OF_ORDER] * 2
    assert producer.codes(0, 1, epoch=1) == [0, 0]
    assert len(client.read_all(compacted)) == 3


def test_the_sequence_can_be_used_again(client: RawClient, compacted: str) -> None:
    producer = _Idempotent(client, compacted)
    assert producer.codes(0) == [0]
    assert producer.send(1, bad=True).error_code == ErrorCode.INVALID_RECORD
    assert producer.codes(1, 2) == [0, 0]
    assert [record.offset for record in client.read_all(compacted)] == [0, 1, 2]


def test_a_duplicate_is_not_validated_again(client: RawClient, topic: str) -> None:
    """An appended batch is a duplicate even if the topic would reject it now."""
    client.create_topic(topic)
    response = client.call(InitProducerIdRequest(), 4)
    fields = {"producer_id": response.producer_id, "producer_epoch": 0}
    batch = batch_of((0, None), **fields, base_sequence=0)
    assert client.produce(topic, bytearray(batch)).base_offset == 0
    config = IncrementalAlterConfigsRequest.Resource.Config(
        name="cleanup.policy", config_operation=0, value="compact"
    )
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=2, resource_name=topic, configs=[config]
    )
    (changed,) = client.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert changed.error_code == 0
    other = batch_of((0, None), **fields, base_sequence=1)
    assert client.produce(topic, other).error_code == ErrorCode.INVALID_RECORD
    row = client.produce(topic, bytearray(batch))
    assert (row.error_code, row.base_offset) == (0, 0)


@pytest.mark.parametrize("version", [11, 12])
def test_a_transaction_is_aborted_and_the_next_one_commits(
    client: RawClient, compacted: str, version: int
) -> None:
    end_version = 5 if version > 11 else 4
    name = f"{compacted}-id"
    find_coordinator(client, name)
    producer = RawProducer(client, name)
    producer.init()

    def produce(key: bytes | None, sequence: int, value: bytes) -> Row:
        batch = build_batch(
            [Record(0, -1, key, value, [])],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = produce_request(compacted, batch)
        request.transactional_id = name
        return client.call(request, version).responses[0].partition_responses[0]

    if version <= 11:
        assert producer.add(compacted, 0) == [0]
    row = produce(None, 0, b"bad")
    assert (row.error_code, _indexes(row)) == (ErrorCode.INVALID_RECORD, [0])
    assert produce(KEY, 0, b"aborted").error_code == 0
    row = produce(None, 1, b"bad")
    assert (row.error_code, _indexes(row)) == (ErrorCode.INVALID_RECORD, [0])
    assert producer.end(commit=False, version=end_version) == 0
    if version <= 11:
        assert producer.add(compacted, 0) == [0]
    first = 0 if version > 11 else read_header(client.fetch(compacted, 0).records).last_sequence + 1
    assert produce(KEY, first, b"good").error_code == 0
    assert producer.end(commit=True, version=end_version) == 0
    assert committed_values(client, compacted) == [b"good"]
