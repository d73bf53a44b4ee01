from __future__ import annotations

import pytest

from millstream.model.error import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsResponse
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.list_offsets import ListOffsetsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse
from millstream.wire.primitive import EncodeError
from millstream.wire.schema import Message, Segment, codec

Topic = FetchResponse.Topic
Partition = Topic.Partition


class FileRange:
    """A range of a log as the encoder sees it: only a length."""

    def __len__(self) -> int:
        return 1_000_000


def _response(*records: Segment | None) -> FetchResponse:
    partitions = [Partition(partition_index=i, records=each) for i, each in enumerate(records)]
    return FetchResponse(responses=[Topic(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_records_are_segments_of_their_own(version: int) -> None:
    first, second = memoryview(b"first"), FileRange()
    segments = codec(FetchResponse, version).encode(_response(first, second))
    assert segments[1] is first
    assert segments[3] is second
    assert all(isinstance(segments[i], bytearray) for i in (0, 2))


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_absent_and_empty_records_make_no_segment(version: int) -> None:
    segments = codec(FetchResponse, version).encode(_response(None, b"", None))
    assert len(segments) == 1
    rows = codec(FetchResponse, version).decode(segments[0]).responses[0].partitions
    assert [row.records for row in rows] == [None, b"", None]


def test_only_the_length_of_records_is_read() -> None:
    head = codec(FetchResponse, 4).encode(_response(FileRange()))[0]
    assert bytes(head)[-4:] == (1_000_000).to_bytes(4)


_LED = ProduceResponse.Topic.Partition(current_leader=ProduceResponse.Topic.Partition.Leader())


@pytest.mark.parametrize(
    ("version", "field", "message"),
    [
        (1, "isolation_level", ListOffsetsRequest(isolation_level=1)),
        (3, "allow_auto_topic_creation", MetadataRequest(allow_auto_topic_creation=False)),
        (15, "replica_id", FetchRequest(replica_id=1)),
        (
            4,
            "forgotten_topics",
            FetchRequest(forgotten_topics_data=[FetchRequest.ForgottenTopic()]),
        ),
        (
            9,
            "current_leader",
            ProduceResponse(responses=[ProduceResponse.Topic(partition_responses=[_LED])]),
        ),
    ],
)
def test_a_value_of_a_missing_field_is_rejected(version: int, field: str, message: Message) -> None:
    with pytest.raises(EncodeError, match=f"version {version} has no field {field}"):
        codec(type(message), version).encode(message)


def test_an_ignorable_value_is_dropped() -> None:
    response = MetadataResponse(throttle_time_ms=7, cluster_id="c", controller_id=3)
    encoded = b"".join(codec(MetadataResponse, 0).encode(response))
    assert encoded == bytes(8)


@pytest.mark.parametrize(
    "request_",
    [
        MetadataRequest(topics=None),
        MetadataRequest(topics=[MetadataRequest.Topic(name=None)]),
        MetadataRequest(topics=[MetadataRequest.Topic(name="x" * 40_000)]),
        MetadataRequest(topics=[MetadataRequest.Topic(name="\ud800")]),
        MetadataRequest(topics=[MetadataRequest.Topic(name=5)]),
    ],
)
def test_a_value_of_a_wrong_type_or_size_is_rejected(request_: MetadataRequest) -> None:
    with pytest.raises(EncodeError):
        codec(MetadataRequest, 0).encode(request_)


def test_a_number_out_of_range_is_rejected() -> None:
    with pytest.raises(EncodeError, match="cannot encode ProduceRequest version 3"):
        codec(ProduceRequest, 3).encode(ProduceRequest(acks=40_000))


def test_a_compact_string_that_is_too_long_is_rejected() -> None:
    too_long = MetadataRequest(topics=[MetadataRequest.Topic(name="x" * 0x8000)])
    with pytest.raises(EncodeError, match="longer than the protocol allows"):
        codec(MetadataRequest, 12).encode(too_long)
    longest = MetadataRequest(topics=[MetadataRequest.Topic(name="x" * 0x7FFF)])
    (encoded,) = codec(MetadataRequest, 12).encode(longest)
    assert codec(MetadataRequest, 12).decode(encoded) == longest


def test_the_count_of_a_long_array_has_two_bytes() -> None:
    response = ApiVersionsResponse(
        api_keys=[ApiVersionsResponse.Api(api_key=key) for key in range(300)]
    )
    (encoded,) = codec(ApiVersionsResponse, 3).encode(response)
    assert bytes(encoded)[2:4] == b"\xad\x02"
    assert codec(ApiVersionsResponse, 3).decode(encoded) == response


def test_a_tagged_struct_is_written_even_with_its_defaults() -> None:
    row = Partition(current_leader=Partition.Leader())
    response = FetchResponse(responses=[Topic(partitions=[row])])
    (encoded,) = codec(FetchResponse, 12).encode(response)
    assert codec(FetchResponse, 12).decode(encoded) == response


def test_enum_members_are_encoded_as_numbers() -> None:
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    assert codec(ApiVersionsResponse, 0).encode(response) == [b"\x00\x23\x00\x00\x00\x00"]
