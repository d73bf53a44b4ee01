"""Faults on demand, with a client that does not retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.process.broker_process import wait_until
from harness.raw.raw_client import Closed, produce_request, values_batch
from millstream.model.error import ErrorCode
from millstream.wire.messages.create_topics import CreateTopicsRequest

if TYPE_CHECKING:
    from tests.testing.conftest import Connect

    from millstream.testing.broker import LocalBroker

LONG_S = 3600.0
BY_NAME = 12


def values(connect: Connect, topic: str) -> list[bytes | None]:
    return [record.value for record in connect().read_all(topic)]


def test_the_next_produces_fail(
    millstream_broker: LocalBroker, millstream_topic: str, connect: Connect
) -> None:
    client = connect()
    millstream_broker.fail_produces(2, "not_enough_replicas")
    millstream_broker.fail_produces(1, ErrorCode.MESSAGE_TOO_LARGE)
    codes = [
        client.produce(millstream_topic, values_batch(b"%d" % number)).error_code
        for number in range(4)
    ]
    assert codes == [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NONE,
    ]
    assert values(connect, millstream_topic) == [b"3"]


def test_an_unacknowledged_produce_that_fails_closes_the_connection(
    millstream_broker: LocalBroker, millstream_topic: str, connect: Connect
) -> None:
    client = connect()
    millstream_broker.fail_produces(1, 6)
    request = produce_request(millstream_topic, values_batch(b"lost"), acks=0)
    client.send(request, BY_NAME, has_response=False)
    assert client.is_closed_within(60)
    assert values(connect, millstream_topic) == []


def test_a_dropped_response_leaves_the_record_in_the_log(
    millstream_broker: LocalBroker, millstream_topic: str, connect: Connect
) -> None:
    millstream_broker.drop_produce_answers()
    with pytest.raises(Closed):
        connect().produce(millstream_topic, values_batch(b"kept"))
    assert connect().produce(millstream_topic, values_batch(b"next")).base_offset == 1
    assert values(connect, millstream_topic) == [b"kept", b"next"]


def test_a_client_may_reconnect_after_a_dropped_connection(
    millstream_broker: LocalBroker, millstream_topic: str, connect: Connect
) -> None:
    clients = [connect(), connect()]
    for client in clients:
        client.topic_id(millstream_topic)
    millstream_broker.drop_connections()
    assert all(client.is_closed_within(60) for client in clients)
    assert connect().topic_id(millstream_topic)


def test_a_response_is_delayed_and_its_request_is_not(
    millstream_broker: LocalBroker, millstream_topic: str, connect: Connect
) -> None:
    held, other = connect(), connect()
    millstream_broker.delay_answers(LONG_S, "produce", count=1)
    held.send(produce_request(millstream_topic, values_batch(b"first")), BY_NAME)
    wait_until(lambda: other.read_all(millstream_topic), "the record in the log")
    assert other.produce(millstream_topic, values_batch(b"second")).base_offset == 1
    assert not held.is_closed_within(0.05)
    millstream_broker.clear_faults()
    held.socket.settimeout(60)
    (row,) = held.receive().responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, 0)


def test_responses_of_all_kinds_are_delayed(
    millstream_broker: LocalBroker, millstream_topic: str, connect: Connect
) -> None:
    """An immediate response, one that waits for records, and one that a task computes."""
    client = connect()
    millstream_broker.delay_answers(0.01)
    assert client.topic_id(millstream_topic)
    assert client.fetch(millstream_topic, 0, wait_ms_max=20).error_code == 0
    client.create_topic(f"{millstream_topic}-late")
    millstream_broker.delete_topic(f"{millstream_topic}-late")


def test_a_client_that_disconnects_cancels_its_delayed_responses(
    millstream_broker: LocalBroker, millstream_topic: str, connect: Connect
) -> None:
    client = connect()
    millstream_broker.delay_answers(LONG_S)
    client.send(produce_request(millstream_topic, values_batch(b"kept")), BY_NAME)
    name = f"{millstream_topic}-unanswered"
    topic = CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1)
    client.send(CreateTopicsRequest(topics=[topic]))
    client.close()
    millstream_broker.restart()
    assert values(connect, millstream_topic) == [b"kept"]


def test_unknown_errors_and_apis_are_rejected(millstream_broker: LocalBroker) -> None:
    with pytest.raises(ValueError, match="'NO_SUCH' is no error"):
        millstream_broker.fail_produces(1, "NO_SUCH")
    with pytest.raises(ValueError, match="-195 is no error"):
        millstream_broker.fail_produces(1, -195)
    with pytest.raises(ValueError, match="NONE is no error"):
        millstream_broker.fail_produces(1, 0)
    with pytest.raises(ValueError, match=r"'PRODUSE' is no API.*PRODUCE"):
        millstream_broker.delay_answers(1, "PRODUSE")
