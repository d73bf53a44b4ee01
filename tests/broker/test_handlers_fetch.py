"""Fetch over the wire: limits, long polls, errors, topic ids and fetch sessions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import (
    RawClient,
    fetch_request,
    produce_request,
    records_of,
    values_batch,
)
from millstream.model.error import ErrorCode
from millstream.records.batch import scan
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.fetch import FetchRequest, FetchResponse

#: Few session slots, so that a test can use them up.
SESSIONS_MAX = 8
LONG_MS = 60_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("fetch")
    settings = {"max.incremental.fetch.session.cache.slots": SESSIONS_MAX}
    with BrokerProcess(folder, settings) as process:
        yield process


@pytest.fixture
def other(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as connection:
        yield connection


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    """A topic with two partitions; the first has five batches of one 1,000-byte record."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    client.create_topic(name, 2)
    for n in range(5):
        assert client.produce(name, values_batch(b"%d" % n * 1000)).error_code == 0
    return name


def rows_of(response: FetchResponse) -> dict[tuple[str, int], Any]:
    return {
        (topic.topic, row.partition_index): row
        for topic in response.responses
        for row in topic.partitions
    }


def firsts(row: Any) -> list[bytes]:
    """Return the first byte of each record's value."""
    return [(record.value or b"")[:1] for record in records_of(row.records)]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads(client: RawClient, topic: str, version: int) -> None:
    wanted = topic if version < 13 else client.topic_id(topic)
    response = client.call(fetch_request([(wanted, 0, 1)]), version)
    (rows,) = response.responses
    (row,) = rows.partitions
    assert firsts(row) == [b"1", b"2", b"3", b"4"]
    assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 5, 5)
    assert rows.topic == (topic if version < 13 else "")
    assert row.log_start_offset == (0 if version >= 5 else -1)


def test_a_batch_larger_than_the_limit_is_still_sent(client: RawClient, topic: str) -> None:
    row = client.fetch(topic, 2, max_bytes=1)
    assert firsts(row) == [b"2"]
    response = client.call(fetch_request([(topic, 0, 0)], partition_max_bytes=1), 12)
    assert firsts(response.responses[0].partitions[0]) == [b"0"]


def test_only_the_first_partition_with_data_exceeds_the_limit(
    client: RawClient, topic: str
) -> None:
    client.produce(topic, values_batch(b"other" * 200), 1)
    request = fetch_request([(topic, 1, 1), (topic, 0, 0), (topic, 1, 0)], max_bytes=1)
    rows = [row for each in client.call(request, 12).responses for row in each.partitions]
    assert [len(scan(row.records)) if row.records else 0 for row in rows] == [0, 1, 0]


def test_max_bytes_limits_the_response(client: RawClient, topic: str) -> None:
    row = client.fetch(topic, 0, max_bytes=2500)
    assert firsts(row)[:2] == [b"0", b"1"]
    assert len(row.records) <= 2500


def test_offsets_outside_of_the_log(client: RawClient, topic: str) -> None:
    for offset in (6, -1, 2**63 - 1):
        row = client.fetch(topic, offset)
        assert (row.error_code, row.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert not row.records
    assert client.fetch(topic, 5).error_code == 0


def test_an_offset_inside_of_a_batch_gets_the_whole_batch(client: RawClient) -> None:
    client.create_topic("inside")
    client.produce("inside", values_batch(b"a", b"b", b"c"))
    row = client.fetch("inside", 2)
    assert [record.offset for record in records_of(row.records)] == [0, 1, 2]


def test_unknown_topics_ids_and_partitions(client: RawClient, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch("nowhere", 0).error_code == unknown
    assert client.fetch(topic, 0, 2).error_code == unknown
    (row,) = client.call(fetch_request([(b"\x05" * 16, 0, 0)]), 16).responses[0].partitions
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [9, 10, 11, 12])
def test_a_wrong_leader_epoch_is_rejected(client: RawClient, topic: str, version: int) -> None:
    for epoch, expected in (
        (1000, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
        (-1, ErrorCode.NONE),
    ):
        request = fetch_request([(topic, 0, 0)])
        request.topics[0].partitions[0].current_leader_epoch = epoch
        (row,) = client.call(request, version).responses[0].partitions
        assert row.error_code == expected
        has_hint = version >= 12 and expected == ErrorCode.FENCED_LEADER_EPOCH
        assert (row.current_leader is not None) == has_hint


# Waiting


def test_a_fetch_at_the_end_waits_for_its_timeout(client: RawClient, topic: str) -> None:
    started = time.monotonic()
    row = client.fetch(topic, 5, wait_ms_max=150)
    assert time.monotonic() - started >= 0.14
    assert (row.error_code, len(row.records or b"")) == (0, 0)


@pytest.mark.parametrize(("partition", "offset"), [(0, 5), (1, 0)])
def test_a_produce_ends_the_wait(
    client: RawClient, other: RawClient, topic: str, partition: int, offset: int
) -> None:
    wanted = [(topic, 0, 5), (topic, 1, 0)]
    client.send(fetch_request(wanted, max_wait_ms=LONG_MS, min_bytes=1), 12)
    assert other.produce(topic, values_batch(b"news"), partition).base_offset == offset
    assert firsts(rows_of(client.receive())[topic, partition]) == [b"n"]


def test_a_fetch_waits_for_min_bytes(client: RawClient, other: RawClient, topic: str) -> None:
    client.send(fetch_request([(topic, 0, 5)], max_wait_ms=LONG_MS, min_bytes=2500), 12)
    for n in range(3):
        assert other.produce(topic, values_batch(b"%d" % n * 1000)).error_code == 0
    assert firsts(client.receive().responses[0].partitions[0]) == [b"0", b"1", b"2"]


def test_an_error_ends_the_wait_at_once(client: RawClient, topic: str) -> None:
    request = fetch_request([(topic, 0, 5), (topic, 1, 77)], max_wait_ms=LONG_MS, min_bytes=1)
    rows = rows_of(client.call(request, 12))
    assert rows[topic, 1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_deleting_the_topic_ends_the_wait(client: RawClient, other: RawClient) -> None:
    other.create_topic("doomed")
    client.send(fetch_request([("doomed", 0, 0)], max_wait_ms=LONG_MS, min_bytes=1), 12)
    assert other.call(DeleteTopicsRequest(topic_names=["doomed"]), 5).responses[0].error_code == 0
    assert client.receive().responses[0].partitions[0].error_code != 0


def test_a_client_that_disconnects_while_it_waits_affects_no_other(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    for _ in range(5):
        with RawClient(broker.host, broker.port) as leaver:
            leaver.send(fetch_request([(topic, 0, 5)], max_wait_ms=LONG_MS, min_bytes=1), 12)
    assert client.produce(topic, values_batch(b"still here")).error_code == 0


# Sessions


def session_request(session_id: int, epoch: int, *wanted: Any, **fields: Any) -> FetchRequest:
    return fetch_request(wanted, session_id=session_id, session_epoch=epoch, **fields)


def forget(topic: str, *partitions: int) -> list[FetchRequest.ForgottenTopic]:
    return [FetchRequest.ForgottenTopic(topic=topic, partitions=list(partitions))]


def open_session(client: RawClient, *wanted: Any) -> int:
    response = client.call(session_request(0, 0, *wanted), 12)
    assert response.error_code == 0
    assert response.session_id > 0
    return int(response.session_id)


def close_session(client: RawClient, session_id: int) -> None:
    assert client.call(session_request(session_id, -1), 12).session_id == 0


def test_a_session_returns_only_changes(client: RawClient, topic: str) -> None:
    session = open_session(client, (topic, 0, 5), (topic, 1, 0))
    response = client.call(session_request(session, 1), 12)
    assert (response.session_id, response.error_code, response.responses) == (session, 0, [])
    client.produce(topic, values_batch(b"news"), 1)
    rows = rows_of(client.call(session_request(session, 2), 12))
    assert list(rows) == [(topic, 1)]
    assert firsts(rows[topic, 1]) == [b"n"]
    # The same records again, because the client has not advanced its offset.
    assert list(rows_of(client.call(session_request(session, 3), 12))) == [(topic, 1)]
    response = client.call(session_request(session, 4, (topic, 1, 1)), 12)
    assert rows_of(response) == {}
    close_session(client, session)


def test_partitions_are_added_to_and_removed_from_a_session(client: RawClient, topic: str) -> None:
    session = open_session(client, (topic, 1, 0))
    assert list(rows_of(client.call(session_request(session, 1, (topic, 0, 3)), 12))) == [
        (topic, 0)
    ]
    request = session_request(session, 2, forgotten_topics_data=forget(topic, 0))
    assert rows_of(client.call(request, 12)) == {}
    client.produce(topic, values_batch(b"x"), 0)
    client.produce(topic, values_batch(b"y"), 1)
    assert list(rows_of(client.call(session_request(session, 3), 12))) == [(topic, 1)]
    close_session(client, session)


def test_wrong_session_epochs_are_rejected(client: RawClient, topic: str) -> None:
    session = open_session(client, (topic, 0, 5))
    response = client.call(session_request(session, 7), 12)
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    response = client.call(session_request(session ^ 1, 1), 12)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    response = client.call(session_request(session, 1), 13)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert client.call(session_request(session, 1), 12).error_code == 0
    close_session(client, session)
    response = client.call(session_request(session, 2), 12)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_client_is_served_without_a_session_if_there_is_no_room(
    client: RawClient, topic: str
) -> None:
    sessions = [open_session(client, (topic, 0, 4)) for _ in range(SESSIONS_MAX)]
    response = client.call(session_request(0, 0, (topic, 0, 4)), 12)
    assert (response.error_code, response.session_id) == (0, 0)
    assert firsts(response.responses[0].partitions[0]) == [b"4"]
    for session in sessions:
        close_session(client, session)
    close_session(client, open_session(client, (topic, 0, 4)))


def test_a_fetch_in_a_session_waits_for_records(
    client: RawClient, other: RawClient, topic: str
) -> None:
    session = open_session(client, (topic, 0, 5), (topic, 1, 0))
    client.send(session_request(session, 1, max_wait_ms=LONG_MS, min_bytes=1), 12)
    other.produce(topic, values_batch(b"news"), 1)
    assert list(rows_of(client.receive())) == [(topic, 1)]
    close_session(client, session)


def test_a_recreated_topic_has_another_id(client: RawClient) -> None:
    old = client.create_topic("again")
    client.produce("again", values_batch(b"old"))
    client.call(DeleteTopicsRequest(topic_names=["again"]), 5)
    new = client.create_topic("again")
    assert new != old
    (row,) = client.call(fetch_request([(old, 0, 0)]), 16).responses[0].partitions
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    (row,) = client.call(fetch_request([(new, 0, 0)]), 16).responses[0].partitions
    assert (row.error_code, row.high_watermark) == (0, 0)
    late = produce_request("", values_batch(b"late"), topic_id=old)
    (late_row,) = client.call(late, 13).responses[0].partition_responses
    assert late_row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
