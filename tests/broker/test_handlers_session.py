"""The session over the wire: ApiVersions, order of responses, frames."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import (
    Closed,
    RawClient,
    encode_frame,
    fetch_request,
    produce_request,
    records_of,
    values_batch,
)
from millstream.model.error import ErrorCode
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.schema import codec

LONG_MS = 60_000


@pytest.fixture
def other(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as connection:
        yield connection


def named(version: int) -> ApiVersionsRequest:
    if version < 3:
        return ApiVersionsRequest()
    return ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


@pytest.mark.parametrize("version", range(5))
def test_api_versions_in_every_version(client: RawClient, version: int) -> None:
    response = client.call(named(version), version)
    ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert response.error_code == 0
    assert ranges[0][1] >= 11
    assert ranges[1][1] >= 13
    assert ranges[18][0] == 0


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_version_of_api_versions_gets_a_response_of_version_0(
    client: RawClient, version: int
) -> None:
    body = [bytearray(b"\x02a\x02b\0nonsense of the future")]
    client.send_raw(b"".join(frame_request(18, version, 7, "new", body)))
    frame = client.receive_frame()
    correlation_id, position = parse_response_header(frame, 18, 0)
    response = codec(ApiVersionsResponse, 0).decode(frame, position)
    assert (correlation_id, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert 18 in {each.api_key for each in response.api_keys}
    assert client.call(named(3), 3).error_code == 0


def test_invalid_software_names_are_rejected(client: RawClient) -> None:
    request = ApiVersionsRequest(client_software_name="-", client_software_version="1")
    assert client.call(request, 3).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("api_key", "version"), [(0, 99), (3, -1), (9999, 0), (-1, 0)])
def test_unknown_apis_and_versions_close_the_connection(
    client: RawClient, api_key: int, version: int
) -> None:
    header = api_key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True)
    client.send_raw(b"\0\0\0\x0e" + header + b"\0\0\0\1\0\0\0\0\0\0")
    assert client.is_closed_within(10)


def test_responses_are_in_the_order_of_the_requests(client: RawClient, other: RawClient) -> None:
    other.create_topic("order")
    new = CreateTopicsRequest.Topic(name="order-2", num_partitions=1, replication_factor=1)
    client.send(fetch_request([("order", 0, 0)], max_wait_ms=LONG_MS, min_bytes=1), 12)
    client.send(MetadataRequest(topics=[]))
    client.send(CreateTopicsRequest(topics=[new]))
    client.send(produce_request("order", values_batch(b"wakes the fetch")), 12)
    client.send(fetch_request([("order", 0, 0)], max_wait_ms=LONG_MS, min_bytes=1), 12)
    assert len(records_of(client.receive().responses[0].partitions[0].records)) == 1
    assert client.receive().topics == []
    assert client.receive().topics[0].error_code == 0
    assert client.receive().responses[0].partition_responses[0].base_offset == 0
    assert len(records_of(client.receive().responses[0].partitions[0].records)) == 1


def test_many_pipelined_requests_in_one_write(client: RawClient) -> None:
    client.create_topic("pipelined")
    count = 3000
    frames = [
        encode_frame(produce_request("pipelined", values_batch(b"%d" % n), acks=1), 9, n)
        for n in range(count)
    ]
    client.send_raw(b"".join(frames))
    for n in range(count):
        frame = client.receive_frame()
        assert int.from_bytes(frame[:4]) == n
    values = [record.value for record in client.read_all("pipelined")]
    assert values == [b"%d" % n for n in range(count)]


def test_a_frame_may_arrive_byte_by_byte(client: RawClient) -> None:
    frame = encode_frame(MetadataRequest(topics=[]), 12, 1)
    for position in range(len(frame)):
        client.send_raw(frame[position : position + 1])
    assert client.receive_frame()[:4] == b"\0\0\0\1"


def test_a_large_frame_may_arrive_in_parts(client: RawClient) -> None:
    client.create_topic("large", configs={"max.message.bytes": 10_000_000})
    batch = values_batch(bytes(range(256)) * 20_000)
    frame = encode_frame(produce_request("large", batch), 9, 1) + encode_frame(named(0), 0, 2)
    for position in range(0, len(frame), 300_007):
        client.send_raw(frame[position : position + 300_007])
    assert client.receive_frame()[:4] == b"\0\0\0\1"
    assert client.receive_frame()[:4] == b"\0\0\0\2"
    (record,) = client.read_all("large")
    assert record.value == bytes(range(256)) * 20_000


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(broker: BrokerProcess, client: RawClient, version: int) -> None:
    response = client.call(DescribeClusterRequest(), version)
    assert [(each.broker_id, each.port) for each in response.brokers] == [(1, broker.port)]
    assert response.controller_id == 1
    assert response.cluster_id


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1, 100 * 1024 * 1024 + 1])
def test_impossible_frame_lengths_close_the_connection(client: RawClient, size: int) -> None:
    client.send_raw(size.to_bytes(4, signed=True) + b"xxxx")
    with pytest.raises(Closed):
        client.receive_frame()
