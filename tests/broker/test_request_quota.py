"""Everything that a client makes the broker do counts for its quota on request time.

The quotas are small: requests that cost nothing would never be throttled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness.in_process.principal_server import PrincipalServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient, fetch_request
from millstream.broker import session
from millstream.broker.handlers import metadata
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.metadata import MetadataRequest

Entry = AlterClientQuotasRequest.Entry
TOPICS = 200
CALLS_MAX = 200


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(tmp_path_factory.mktemp("quota"), count=1) as found:
        topics = [
            CreateTopicsRequest.Topic(name=f"t{number}", num_partitions=1, replication_factor=1)
            for number in range(TOPICS)
        ]
        with found.client(1) as client:
            rows = client.call(CreateTopicsRequest(topics=topics)).topics
            assert {row.error_code for row in rows} == {0}
        yield found


def limit(brokers: PrincipalServerSet, user: str, percentage: float) -> None:
    entry = Entry(
        entity=[Entry.Entity(entity_type="user", entity_name=user)],
        ops=[Entry.Op(key="request_percentage", value=percentage)],
    )
    with brokers.client(1) as client:
        (row,) = client.call(AlterClientQuotasRequest(entries=[entry])).entries
    assert row.error_code == 0
    wait_until(lambda: brokers.services(1).quotas is not None, "the quota")


def is_throttled(client: RawClient, request: Any, version: int) -> bool:
    return any(client.call(request, version).throttle_time_ms for _ in range(CALLS_MAX))


def used_s(brokers: PrincipalServerSet, user: str) -> float:
    """Return the seconds that the broker has charged to a user."""

    def look() -> float:
        quotas = brokers.services(1).quotas
        assert quotas is not None
        meters = quotas.limiter.meters()
        return sum(meter.used for meter in meters if meter.scope[0] == user) / 100

    return brokers.ask(look)


def test_denied_requests_count(brokers: PrincipalServerSet) -> None:
    limit(brokers, "denied", 0.001)
    with brokers.client(1, "as-denied") as client:
        assert is_throttled(client, DescribeAclsRequest(), 3)


def test_a_client_that_claims_to_be_a_follower_is_not_exempt(brokers: PrincipalServerSet) -> None:
    limit(brokers, "follower", 0.001)
    claim = fetch_request(
        [(bytes(16), 0, 0)], replica_state=FetchRequest.ReplicaState(replica_id=2)
    )
    with brokers.client(1, "as-follower") as client:
        assert is_throttled(client, claim, 17)


def test_the_task_of_a_request_counts(
    brokers: PrincipalServerSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cluster with many topics is described by a task.
    monkeypatch.setattr(metadata, "_TOPICS_AT_ONCE", 10)
    monkeypatch.setattr(metadata, "_is_shown", lambda topic, context: time.sleep(0.0005) or True)
    limit(brokers, "stormy", 1000.0)
    with brokers.client(1, "as-stormy") as client:
        client.call(MetadataRequest(topics=None), 12)
    assert used_s(brokers, "stormy") >= TOPICS * 0.0005
    limit(brokers, "stormy", 0.1)
    with brokers.client(1, "as-stormy") as client:
        assert client.call(MetadataRequest(topics=None), 12).throttle_time_ms


def test_encoding_a_response_counts(
    brokers: PrincipalServerSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(brokers, "encoder", 1000.0)
    encode = session._encode

    def encode_slowly(*arguments: Any) -> Any:
        time.sleep(0.02)
        return encode(*arguments)

    monkeypatch.setattr(session, "_encode", encode_slowly)
    with brokers.client(1, "as-encoder") as client:
        client.call(MetadataRequest(topics=[]), 12)
    assert used_s(brokers, "encoder") >= 0.02
