"""Requests that are rejected without a response: the log says why, and a metric counts them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient, encode_frame, produce_request, values_batch
from millstream.broker.session import OTHER_REQUEST_BYTES_MAX
from millstream.net.rejection import Rejection
from millstream.wire.api import ApiKey
from millstream.wire.messages.metadata import MetadataRequest

NODE = 1


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSet]:
    folder: Path = tmp_path_factory.mktemp("rejected")
    with ServerSet(folder, 1) as running:
        yield running


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, client_id: bytes = b"me") -> bytes:
    return struct.pack(">hhih", key, version, 1, len(client_id)) + client_id


#: The request, and the log line without the address.
REQUESTS = {
    Rejection.FRAME: (struct.pack(">i", -5), ("a request", "-5 bytes")),
    Rejection.HEADER: (frame(struct.pack(">hhih", 3, 1, 1, 50) + b"me"), ("a request",)),
    Rejection.API: (frame(header(999, 0) + b"\0"), ("'me'", "API key 999")),
    Rejection.VERSION: (
        frame(header(ApiKey.METADATA, 99) + b"\0"),
        ("Metadata", "'me'", "version 99"),
    ),
    Rejection.SIZE: (
        frame(header(ApiKey.METADATA, 1) + bytes(OTHER_REQUEST_BYTES_MAX)),
        ("Metadata", "bytes; at most"),
    ),
    Rejection.BODY: (
        frame(header(ApiKey.METADATA, 1) + struct.pack(">i", 1_000_000)),
        ("Metadata", "'me'", "version 1"),
    ),
    Rejection.HANDLER: (
        encode_frame(produce_request("absent", values_batch(b"a"), 7, acks=0), 12, 1, "me"),
        ("Produce", "'me'", "acks=0", "absent-7", "UNKNOWN_TOPIC_OR_PARTITION"),
    ),
}


def counts(brokers: ServerSet) -> dict[str, float]:
    families = brokers.ask(lambda: list(brokers.services(NODE).metrics.families()))
    (family,) = [each for each in families if each.name == "millstream_requests_rejected_total"]
    rows = {}
    for labels, value in family.rows:
        assert isinstance(value, int | float)
        rows[labels[0]] = value
    return rows


def test_every_kind_of_rejection_has_a_request() -> None:
    # `tests/net/` tests rejected connections and handshakes, `tests/broker/login/` logins.
    others = {Rejection.CONNECTIONS, Rejection.HANDSHAKE, Rejection.AUTHENTICATION}
    assert REQUESTS.keys() | others == set(Rejection)


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_rejected_request_is_logged_and_counted(
    brokers: ServerSet, kind: Rejection, caplog: pytest.LogCaptureFixture
) -> None:
    before = counts(brokers)
    sent, parts = REQUESTS[kind]
    with brokers.client(NODE) as other, brokers.client(NODE) as client:
        send_all(client, sent)
        assert client.is_closed_within(10)
        wait_until(lambda: counts(brokers)[kind] == before[kind] + 1, "the rejection's count")
        assert counts(brokers) == before | {kind: before[kind] + 1}
        (line,) = [each.getMessage() for each in caplog.records if "rejected" in each.getMessage()]
        for part in ("127.0.0.1", kind, *parts):
            assert part in line
        # Other connections are not affected.
        assert other.call(MetadataRequest(topics=[]), 12).brokers


def send_all(client: RawClient, data: bytes) -> None:
    # The request may be rejected before all of it has arrived.
    with suppress(ConnectionResetError, BrokenPipeError):
        client.socket.sendall(data)
