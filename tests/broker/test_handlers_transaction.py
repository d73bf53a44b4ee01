"""Transactions over the wire: each API in every version, both protocols, and rejections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient, produce_request
from harness.raw.raw_transaction import (
    CLASSIC_END,
    CLASSIC_PRODUCE,
    GROUP,
    RawProducer,
    committed_values,
    fetch_offset,
    find_coordinator,
)
from millstream.model.error import ErrorCode
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, TxnTopic
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from millstream.wire.messages.write_txn_markers import WriteTxnMarkersRequest

PARTITIONS = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("transaction")
    with BrokerProcess(folder, {"auto.create.topics.enable": False}) as process:
        with RawClient(process.host, process.port) as client:
            client.create_topic("t", PARTITIONS)
            find_coordinator(client, "x")
            find_coordinator(client, "g", GROUP)
        yield process


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def topic(client: RawClient, name: str) -> str:
    client.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def producer(client: RawClient, name: str) -> RawProducer:
    made = RawProducer(client, name)
    made.init()
    return made


def describe(client: RawClient, transactional_id: str) -> Any:
    response = client.call(DescribeTransactionsRequest(transactional_ids=[transactional_id]))
    return response.transaction_states[0]


def wait_for_state(client: RawClient, transactional_id: str, state: str) -> None:
    wait_until(
        lambda: describe(client, transactional_id).transaction_state == state,
        f"{transactional_id} to be {state}",
    )


# The classic protocol


@pytest.mark.parametrize("version", range(6))
def test_every_version_gives_a_producer_its_id_and_the_next_epoch(
    client: RawClient, name: str, version: int
) -> None:
    producer = RawProducer(client, name)
    assert producer.try_init(version) == 0
    first = producer.producer_id
    assert producer.epoch == 0
    assert producer.try_init(version) == 0
    assert (producer.producer_id, producer.epoch) == (first, 1)


@pytest.mark.parametrize("version", range(4))
def test_a_committed_transaction_is_read(
    client: RawClient, producer: RawProducer, topic: str, version: int
) -> None:
    assert producer.add(topic, 0, 2, version=version) == [0, 0]
    assert producer.produce(topic, b"a", b"b", version=8 + version) == 0
    assert producer.produce(topic, b"c", partition=2, version=8 + version) == 0
    assert committed_values(client, topic) == []
    assert producer.end(commit=True, version=1 + version) == 0
    wait_for_state(client, producer.transactional_id, "CompleteCommit")
    assert committed_values(client, topic) == [b"a", b"b"]
    assert committed_values(client, topic, 2) == [b"c"]
    assert committed_values(client, topic, 1) == []


def test_an_aborted_transaction_is_not_read(
    client: RawClient, producer: RawProducer, topic: str
) -> None:
    for commit in (False, True, False):
        producer.add(topic, 0)
        value = b"kept" if commit else b"dropped"
        assert producer.produce(topic, value, version=CLASSIC_PRODUCE) == 0
        assert producer.end(commit=commit, version=CLASSIC_END) == 0
        assert producer.epoch == 0
    wait_for_state(client, producer.transactional_id, "CompleteAbort")
    assert committed_values(client, topic) == [b"kept"]
    # A reader of uncommitted records also gets control records.
    assert len(client.read_all(topic)) == 6


def test_a_repeated_end_succeeds_and_the_opposite_end_is_rejected(
    client: RawClient, producer: RawProducer, topic: str
) -> None:
    assert producer.end(commit=True, version=3) == ErrorCode.INVALID_TXN_STATE
    producer.add(topic, 0)
    assert producer.end(commit=True, version=3) == 0
    wait_for_state(client, producer.transactional_id, "CompleteCommit")
    assert producer.end(commit=True, version=3) == 0
    assert producer.end(commit=False, version=3) == ErrorCode.INVALID_TXN_STATE


def test_partitions_are_added_all_or_none(
    producer: RawProducer, topic: str, client: RawClient
) -> None:
    assert producer.add(topic, 0, PARTITIONS) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    refused = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert producer.add("__consumer_offsets", 0) == refused
    assert describe(client, producer.transactional_id).transaction_state == "Empty"


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_a_partition_that_was_not_added_rejects_batches(
    client: RawClient, producer: RawProducer, topic: str, version: int, code: ErrorCode
) -> None:
    producer.add(topic, 1)
    assert producer.produce(topic, b"x", version=version) == code
    assert producer.end(commit=True, version=3) == 0
    assert producer.produce(topic, b"x", partition=1, version=version) == code
    assert client.read_all(topic) == []


def test_a_batch_needs_a_transactional_id_and_one_producer(
    client: RawClient, producer: RawProducer, topic: str, name: str
) -> None:
    row = client.produce(topic, producer.batch(topic, b"x"))
    assert row.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    other = RawProducer(client, f"{name}-other")
    other.init()
    request = produce_request(topic, producer.batch(topic, b"x"))
    data = request.topic_data[0].partition_data
    data.append(type(data[0])(index=1, records=other.batch(topic, b"y")))
    request.transactional_id = producer.transactional_id
    rows = client.call(request, 12).responses[0].partition_responses
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_a_transactional_request_with_acks_0_closes_the_connection(
    broker: BrokerProcess, client: RawClient, producer: RawProducer, topic: str
) -> None:
    request = produce_request(topic, producer.batch(topic, b"x"), acks=0)
    request.transactional_id = producer.transactional_id
    with RawClient(broker.host, broker.port) as other:
        other.send(request, 12, has_response=False)
        assert other.is_closed_within(10)
    assert client.read_all(topic) == []


# Fencing


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_producer_is_fenced(
    client: RawClient, producer: RawProducer, topic: str, version: int
) -> None:
    producer.add(topic, 0)
    producer.produce(topic, b"lost", version=CLASSIC_PRODUCE)
    newer = RawProducer(client, producer.transactional_id)
    newer.init()
    assert newer.producer_id == producer.producer_id
    assert newer.epoch > producer.epoch
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add(topic, 0, version=version) == [fenced]
    assert producer.add_offsets("g", version=version) == fenced
    assert producer.end(commit=True, version=version) == fenced
    for each in (3, 11, 12):
        code = producer.produce(topic, b"late", version=each)
        assert code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert producer.produce(topic, b"late", partition=1, version=each) == code
    assert producer.commit_offset("g", "t", 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.try_init(3, goes_on=True) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.try_init(4, goes_on=True) == ErrorCode.PRODUCER_FENCED
    assert newer.produce(topic, b"kept") == 0
    assert newer.end(commit=True) == 0
    wait_for_state(client, producer.transactional_id, "CompleteCommit")
    assert committed_values(client, topic) == [b"kept"]
    assert committed_values(client, topic, 1) == []


def test_a_new_producer_aborts_the_open_transaction_first(
    client: RawClient, producer: RawProducer, topic: str
) -> None:
    producer.produce(topic, b"lost")
    newer = RawProducer(client, producer.transactional_id)
    assert newer.try_init() == ErrorCode.CONCURRENT_TRANSACTIONS
    newer.init()
    assert committed_values(client, topic) == []
    assert len(client.read_all(topic)) == 2


def test_a_producer_continues_after_an_error_with_a_higher_epoch(
    client: RawClient, producer: RawProducer
) -> None:
    before = (producer.producer_id, producer.epoch)
    assert producer.try_init(goes_on=True) == 0
    assert (producer.producer_id, producer.epoch) == (before[0], 1)
    # The producer lost the response, and retries.
    producer.epoch = 0
    assert producer.try_init(goes_on=True) == 0
    assert producer.epoch == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_invalid_init_producer_id_requests_are_rejected(
    client: RawClient, fields: dict[str, Any], code: ErrorCode
) -> None:
    given = {"transactional_id": "nonsense", "transaction_timeout_ms": 1000, **fields}
    response = client.call(InitProducerIdRequest(**given))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


def test_unknown_transactional_ids_are_rejected(client: RawClient, topic: str) -> None:
    unknown = RawProducer(client, "unknown")
    unknown.producer_id, unknown.epoch = 1, 0
    assert unknown.add(topic, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert unknown.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert unknown.add_offsets("g") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert unknown.commit_offset("g", "t", 1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert unknown.produce(topic, b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert describe(client, "unknown").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# Transaction version 2


@pytest.mark.parametrize("version", [12, 13])
def test_every_end_raises_the_epoch(
    client: RawClient, producer: RawProducer, topic: str, version: int
) -> None:
    for number in range(4):
        assert producer.epoch == number
        value = b"%d" % number
        assert producer.produce(topic, value, version=version) == 0
        assert producer.produce(topic, value, partition=1, version=version) == 0
        assert producer.end(commit=number % 2 == 0) == 0
    wait_for_state(client, producer.transactional_id, "CompleteAbort")
    assert committed_values(client, topic) == [b"0", b"2"]
    assert committed_values(client, topic, 1) == [b"0", b"2"]


def test_a_retried_end_gets_the_same_response(
    client: RawClient, producer: RawProducer, topic: str
) -> None:
    producer.produce(topic, b"a")
    assert producer.end(commit=True) == 0
    wait_for_state(client, producer.transactional_id, "CompleteCommit")
    producer.epoch = 0
    assert producer.end(commit=False) == ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=True) == 0
    assert producer.epoch == 1
    # No transaction is open: only an abort is valid, and raises the epoch.
    assert producer.end(commit=True) == ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False) == 0
    assert producer.epoch == 2


def test_a_late_batch_of_the_last_transaction_does_not_become_part_of_the_next(
    client: RawClient, producer: RawProducer, topic: str
) -> None:
    producer.produce(topic, b"a")
    late = producer.batch(topic, b"late")
    producer.end(commit=False)
    producer.produce(topic, b"b")
    request = produce_request(topic, late)
    request.transactional_id = producer.transactional_id
    row = client.call(request, 12).responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    producer.end(commit=True)
    wait_for_state(client, producer.transactional_id, "CompleteCommit")
    assert committed_values(client, topic) == [b"b"]


def test_api_versions_has_the_transaction_version(client: RawClient) -> None:
    response = client.call(
        ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 4
    )
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    assert finalized["transaction.version"] == 2
    assert response.finalized_features_epoch >= 0
    supported = {each.name: each.max_version for each in response.supported_features}
    assert supported["transaction.version"] == 2


# Offsets


@pytest.mark.parametrize("version", range(6))
def test_offsets_take_effect_when_the_transaction_is_committed(
    client: RawClient, producer: RawProducer, name: str, version: int
) -> None:
    for number, commit in enumerate((True, False, True)):
        before = fetch_offset(client, name, "t", stable=True)
        if version < 5:
            assert producer.add_offsets(name, version=min(version, 4)) == 0
        assert producer.commit_offset(name, "t", 10 + number, version=version) == 0
        assert fetch_offset(client, name, "t") == before
        unstable = (before[0], ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert fetch_offset(client, name, "t", stable=True) == unstable
        assert fetch_offset(client, name, "t", 1, stable=True) == (-1, 0)
        assert producer.end(commit=commit, version=min(version, 5)) == 0
        after = (10 + number, 0) if commit else before
        wait_until(
            lambda after=after: fetch_offset(client, name, "t", stable=True) == after,
            "the offset to be settled",
        )


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_a_group_that_was_not_added_rejects_offsets(
    client: RawClient, producer: RawProducer, name: str, version: int, code: ErrorCode
) -> None:
    assert producer.commit_offset(name, "t", 1, version=version) == code
    assert producer.commit_offset(name, "u", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch_offset(client, name, "t", stable=True) == (-1, 0)


def test_an_unknown_member_is_rejected(producer: RawProducer, name: str) -> None:
    code = producer.commit_offset(name, "t", 1, member_id="m", generation_id=3)
    assert code == ErrorCode.ILLEGAL_GENERATION


# Timeouts and restarts


def test_a_transaction_is_aborted_after_its_timeout(
    client: RawClient, topic: str, name: str
) -> None:
    producer = RawProducer(client, name)
    producer.init(timeout_ms=200)
    producer.add(topic, 0)
    producer.produce(topic, b"slow", version=CLASSIC_PRODUCE)
    wait_for_state(client, name, "CompleteAbort")
    assert committed_values(client, topic) == []
    assert producer.end(commit=True, version=3) == ErrorCode.PRODUCER_FENCED
    code = producer.produce(topic, b"late", version=CLASSIC_PRODUCE)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_transactions_survive_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("t", PARTITIONS)
            find_coordinator(client, "x")
            find_coordinator(client, "g", GROUP)
            producers = [RawProducer(client, f"x{number}") for number in range(4)]
            for number, producer in enumerate(producers):
                producer.init()
                assert producer.produce("t", b"%d" % number) == 0
                assert producer.commit_offset(f"g{number}", "t", number) == 0
            assert producers[0].end(commit=True) == 0
        broker.kill()
        broker.start()
        with RawClient(broker.host, broker.port) as client:
            for number, producer in enumerate(producers):
                producer.client = client
                wait_for_state(client, f"x{number}", "Ongoing" if number else "CompleteCommit")
            unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert fetch_offset(client, "g1", "t", stable=True) == unstable
            assert producers[1].end(commit=True) == 0
            assert producers[2].end(commit=False) == 0
            newer = RawProducer(client, "x3")
            newer.init()
            for number, state in enumerate(("CompleteCommit", "CompleteCommit", "CompleteAbort")):
                wait_for_state(client, f"x{number}", state)
            assert committed_values(client, "t") == [b"0", b"1"]
            found = [fetch_offset(client, f"g{n}", "t", stable=True) for n in range(4)]
            assert found == [(0, 0), (1, 0), (-1, 0), (-1, 0)]


def test_a_broker_with_transaction_version_0_reports_it(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, {"transaction.version": 0}) as broker,
        RawClient(broker.host, broker.port) as client,
    ):
        response = client.call(
            ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3
        )
        assert "transaction.version" not in {each.name for each in response.finalized_features}
        assert response.supported_features == []
        client.create_topic("t")
        find_coordinator(client, "x")
        producer = RawProducer(client, "x")
        producer.init()
        producer.add("t", 0)
        assert producer.produce("t", b"a", version=CLASSIC_PRODUCE) == 0
        broker.kill()
        broker.start()
        with RawClient(broker.host, broker.port) as again:
            wait_for_state(again, "x", "Ongoing")
            producer.client = again
            assert producer.end(commit=True, version=CLASSIC_END) == 0
            wait_for_state(again, "x", "CompleteCommit")
            assert committed_values(again, "t") == [b"a"]


# Administration


def test_transactions_are_described_and_listed(
    client: RawClient, producer: RawProducer, topic: str, name: str
) -> None:
    producer.produce(topic, b"a", partition=2)
    producer.produce(topic, b"a")
    row = describe(client, name)
    assert (row.error_code, row.transaction_state) == (0, "Ongoing")
    assert (row.producer_id, row.producer_epoch) == (producer.producer_id, producer.epoch)
    assert row.transaction_timeout_ms == 60_000
    assert row.transaction_start_time_ms > 0
    assert [(each.topic, each.partitions) for each in row.topics] == [(topic, [0, 2])]

    def listed(version: int | None = None, **filters: Any) -> set[str]:
        response = client.call(ListTransactionsRequest(**filters), version)
        assert response.error_code == 0
        return {each.transactional_id for each in response.transaction_states}

    for version in range(3):
        assert name in listed(version)
        assert listed(version, producer_id_filters=[producer.producer_id]) == {name}
        assert name in listed(version, state_filters=["Ongoing"])
        assert name not in listed(version, state_filters=["Empty"])
    assert name not in listed(1, duration_filter=60_000)
    assert listed(2, transactional_id_pattern=f"{name[:5]}.*{name[-5:]}") == {name}
    assert listed(2, transactional_id_pattern=name[:5]) == set()
    response = client.call(ListTransactionsRequest(state_filters=["Odd"]))
    assert (response.unknown_state_filters, response.transaction_states) == (["Odd"], [])
    response = client.call(ListTransactionsRequest(transactional_id_pattern="("))
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_transactional_ids_with_any_characters_match_a_pattern(
    client: RawClient, name: str
) -> None:
    transactional_id = f"{name}: orders/ü"
    RawProducer(client, transactional_id).init()
    for pattern in (f"{name}: orders/.", f"{name}:\\s[a-z]+/[^a-z]", f"{name}.*"):
        response = client.call(ListTransactionsRequest(transactional_id_pattern=pattern))
        assert [each.transactional_id for each in response.transaction_states] == [transactional_id]
    response = client.call(ListTransactionsRequest(transactional_id_pattern=f"{name}:[a-z]*"))
    assert response.transaction_states == []


def test_partitions_are_verified_in_batches(
    client: RawClient, producer: RawProducer, topic: str, name: str
) -> None:
    producer.add(topic, 1)
    assert producer.verify(topic, 0, 1) == [ErrorCode.TRANSACTION_ABORTABLE, 0]
    other = RawProducer(client, f"{name}-other")
    other.init()
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnRequest.Transaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                topics=[TxnTopic(name=topic, partitions=[2])],
            )
            for each in (producer, other)
        ]
    )
    response = client.call(request, 5)
    assert [each.transactional_id for each in response.results_by_transaction] == [
        producer.transactional_id,
        other.transactional_id,
    ]
    assert producer.verify(topic, 2) == other.verify(topic, 2, version=4) == [0]


def test_an_operator_ends_a_transaction_with_markers(
    client: RawClient, producer: RawProducer, topic: str
) -> None:
    producer.produce(topic, b"a")

    def mark(*partitions: int, epoch: int, commit: bool = False) -> list[int]:
        marker = WriteTxnMarkersRequest.Marker(
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            coordinator_epoch=0,
            topics=[
                WriteTxnMarkersRequest.Marker.Topic(name=topic, partition_indexes=list(partitions))
            ],
        )
        response = client.call(WriteTxnMarkersRequest(markers=[marker]), 1)
        assert response.markers[0].producer_id == producer.producer_id
        return [each.error_code for each in response.markers[0].topics[0].partitions]

    assert committed_values(client, topic) == []
    assert mark(0, 9, epoch=producer.epoch) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert committed_values(client, topic) == []
    assert len(client.read_all(topic)) == 2
    assert client.call(WriteTxnMarkersRequest(), 2).markers == []


def test_an_end_does_not_wait_for_deleted_topics(
    client: RawClient, producer: RawProducer, topic: str, name: str
) -> None:
    client.create_topic(f"{name}-gone")
    producer.produce(f"{name}-gone", b"a")
    producer.produce(topic, b"a")
    gone = DeleteTopicsRequest.Topic(name=f"{name}-gone")
    assert client.call(DeleteTopicsRequest(topics=[gone])).responses[0].error_code == 0
    assert producer.end(commit=True) == 0
    wait_for_state(client, name, "CompleteCommit")
    assert committed_values(client, topic) == [b"a"]


def keep(client: RawClient, producer: RawProducer) -> Any:
    """Prepare the transaction of the producer."""
    return client.call(
        InitProducerIdRequest(
            transactional_id=producer.transactional_id,
            transaction_timeout_ms=1,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            enable_2pc=True,
            keep_prepared_txn=True,
        ),
        6,
    )


@pytest.mark.parametrize("commit", [True, False])
def test_the_producer_that_kept_a_prepared_transaction_ends_it(
    client: RawClient, producer: RawProducer, topic: str, commit: bool
) -> None:
    assert producer.add(topic, 0) == [0]
    assert producer.produce(topic, b"x", version=CLASSIC_PRODUCE) == 0
    response = keep(client, producer)
    assert (response.error_code, response.producer_epoch) == (0, producer.epoch + 1)
    ongoing = (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
    assert ongoing == (producer.producer_id, producer.epoch)
    row = describe(client, producer.transactional_id)
    assert (row.transaction_state, row.transaction_timeout_ms) == ("Ongoing", 2**31 - 1)
    assert producer.end(commit=True, version=CLASSIC_END) == ErrorCode.PRODUCER_FENCED
    producer.become(response.producer_id, response.producer_epoch)
    assert producer.add(topic, 1) == [ErrorCode.INVALID_TXN_STATE]
    for _ in range(2):
        assert producer.end(commit=commit, version=CLASSIC_END) == 0
        wait_for_state(
            client, producer.transactional_id, "CompleteCommit" if commit else "CompleteAbort"
        )
    assert committed_values(client, topic) == ([b"x"] if commit else [])


def test_keeping_reports_that_no_transaction_is_open(
    client: RawClient, producer: RawProducer
) -> None:
    response = keep(client, producer)
    assert (response.error_code, response.ongoing_txn_producer_id) == (0, -1)
    assert response.ongoing_txn_producer_epoch == -1


def test_the_settings_may_disallow_transactions_without_a_timeout(tmp_path: Path) -> None:
    settings = {"transaction.two.phase.commit.enable": False}
    with (
        BrokerProcess(tmp_path, settings) as process,
        RawClient(process.host, process.port) as client,
    ):
        client.create_topic("t", 1)
        find_coordinator(client, "x")
        producer = RawProducer(client, "x")
        producer.init()
        assert producer.add("t", 0) == [0]
        response = keep(client, producer)
        assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_prepared_transaction_survives_its_timeout_and_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {}) as process:
        with RawClient(process.host, process.port) as client:
            client.create_topic("t", 1)
            find_coordinator(client, "x")
            producer, other = RawProducer(client, "x"), RawProducer(client, "y")
            for each in (producer, other):
                each.init(timeout_ms=4000)
                assert each.add("t", 0) == [0]
            assert producer.produce("t", b"x", version=CLASSIC_PRODUCE) == 0
            response = keep(client, producer)
            assert response.error_code == 0
        process.kill()
        process.start()
        with RawClient(process.host, process.port) as client:
            # The transaction that was not prepared has the same timeout, and was aborted.
            wait_for_state(client, "y", "CompleteAbort")
            assert describe(client, "x").transaction_state == "Ongoing"
            producer.client = client
            producer.become(response.producer_id, response.producer_epoch)
            assert producer.end(commit=True, version=CLASSIC_END) == 0
            wait_for_state(client, "x", "CompleteCommit")
            assert committed_values(client, "t") == [b"x"]
