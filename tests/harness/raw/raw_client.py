"""A blocking client that sends any request in any version, or any bytes at all.

Real clients hide most of the protocol: they retry, renegotiate and never send malformed requests.
This client sends exactly what a test asks, with one socket and the codecs of `millstream.wire`.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

from millstream.model.error import ErrorCode
from millstream.records.batch import scan
from millstream.records.builder import build_batch
from millstream.records.record import Record, decode_records
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.list_offsets import ListOffsetsRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse
from millstream.wire.schema import codec

_LENGTH = struct.Struct(">i")
#: The last versions with topic names instead of topic ids.
PRODUCE_BY_NAME = 12
FETCH_BY_NAME = 12
_DECOMPRESSED_BYTES_MAX = 64 << 20


class Closed(Exception):  # noqa: N818 - what happened to the connection, not an error of the test
    """The broker closed the connection."""


def response_class(request: type) -> Any:
    """Return the response class of a request class."""
    return getattr(
        sys.modules[request.__module__], request.__name__[: -len("Request")] + "Response"
    )


def encode_frame(
    request: Any, version: int, correlation_id: int = 0, client_id: str | None = "raw"
) -> bytes:
    """Return the frame of a request, with its length."""
    body = codec(type(request), version).encode(request)
    frame: list[Any] = list(
        frame_request(request.api_key, version, correlation_id, client_id, body)
    )
    return b"".join(frame)


def values_batch(*values: bytes, timestamp: int | None = None, **fields: Any) -> bytearray:
    """Build a batch of records without keys, by default of now; `fields` go to `build_batch`."""
    if timestamp is None:
        timestamp = time.time_ns() // 1_000_000
    records = [Record(i, timestamp + i, None, value, []) for i, value in enumerate(values)]
    return build_batch(records, **fields)


def records_of(data: Any) -> list[Record]:
    """Return all records in the complete batches of a Fetch response."""
    if not data:
        return []
    return [
        record
        for position, _ in scan(data)
        for record in decode_records(data, _DECOMPRESSED_BYTES_MAX, position)
    ]


class OutOfRangeError(AssertionError):
    """The log does not have the requested offset."""


class RawClient:
    """One connection. Requests may be pipelined: `send` several, then `receive` in order."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float = 15.0,
        source: str | None = None,
        client_id: str | None = "raw",
    ) -> None:
        """Connect, from the address `source` if given, such as 127.0.0.2."""
        self._client_id = client_id
        self.socket = socket.create_connection(
            (host, port), timeout_s, None if source is None else (source, 0)
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._pending: list[tuple[Any, int, int]] = []
        self._topic_ids: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # Any request

    def send(self, request: Any, version: int | None = None, *, has_response: bool = True) -> None:
        """Send a request. `has_response=False` if it has no response: Produce with acks=0."""
        if version is None:
            version = request.versions[1]
        self.send_raw(self._frame(request, version))
        if not has_response:
            self._pending.pop()

    def send_together(self, requests: Iterable[Any], version: int) -> None:
        """Send several requests in one write, so that the broker reads them together."""
        self.send_raw(b"".join([self._frame(request, version) for request in requests]))

    def _frame(self, request: Any, version: int) -> bytes:
        self._correlation_id += 1
        self._pending.append((response_class(type(request)), version, self._correlation_id))
        return encode_frame(request, version, self._correlation_id, self._client_id)

    def receive(self) -> Any:
        """Return the response to the oldest pending request. Raises Closed."""
        response, version, expected = self._pending.pop(0)
        frame = self.receive_frame()
        correlation_id, position = parse_response_header(frame, response.api_key, version)
        assert correlation_id == expected, (
            f"response {correlation_id} arrived before response {expected}"
        )
        return codec(response, version).decode(frame, position)

    def call(self, request: Any, version: int | None = None) -> Any:
        assert not self._pending, "responses to earlier requests are pending"
        self.send(request, version)
        return self.receive()

    # Any bytes

    def send_raw(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed from error

    def receive_frame(self) -> bytes:
        (size,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError as error:
                raise Closed from error
            if not part:
                raise Closed(f"the connection closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def is_closed_within(self, seconds_max: float) -> bool:
        """Whether the broker closes the connection in time; responses are discarded."""
        self.socket.settimeout(seconds_max)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
        return True

    # Common requests

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, object] | None = None,
        replication_factor: int = 1,
    ) -> bytes:
        """Create a topic that must not exist, and return its id."""
        topic = CreateTopicsRequest.Topic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[
                CreateTopicsRequest.Topic.Config(name=key, value=str(value))
                for key, value in (configs or {}).items()
            ],
        )
        (row,) = self.call(CreateTopicsRequest(topics=[topic])).topics
        assert row.error_code == 0, (row.error_code, row.error_message)
        self._topic_ids[name] = row.topic_id
        return bytes(row.topic_id)

    def topic_id(self, name: str) -> bytes:
        found = self._topic_ids.get(name)
        if found is None:
            wanted = [MetadataRequest.Topic(name=name)]
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
            (row,) = self.call(request).topics
            assert row.error_code == 0, row
            found = self._topic_ids[name] = bytes(row.topic_id)
        return found

    def produce(
        self,
        topic: str,
        batch: bytes | bytearray | memoryview | None,
        partition: int = 0,
        *,
        acks: int = -1,
        version: int = PRODUCE_BY_NAME,
    ) -> ProduceResponse.Topic.Partition:
        """Produce to one partition, and return its row of the response."""
        response: ProduceResponse = self.call(
            produce_request(topic, batch, partition, acks=acks), version
        )
        return response.responses[0].partition_responses[0]

    def fetch(
        self,
        topic: str,
        offset: int,
        partition: int = 0,
        *,
        max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        wait_ms_max: int = 0,
        version: int = FETCH_BY_NAME,
    ) -> FetchResponse.Topic.Partition:
        """Fetch from one partition without a session, and return its row of the response."""
        request = fetch_request(
            [(topic, partition, offset)],
            max_bytes=max_bytes,
            min_bytes=min_bytes,
            max_wait_ms=wait_ms_max,
        )
        response: FetchResponse = self.call(request, version)
        assert response.error_code == 0, response
        return response.responses[0].partitions[0]

    def read_all(self, topic: str, partition: int = 0, offset: int = 0) -> list[Record]:
        """Return every record from `offset` to the high watermark."""
        found: list[Record] = []
        while True:
            row = self.fetch(topic, offset, partition, max_bytes=8 << 20)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise OutOfRangeError(offset)
            assert row.error_code == 0, row.error_code
            records: Any = row.records
            batches = scan(records) if records else []
            if not batches:
                # The end, or compaction has removed all records up to the end.
                return found
            found += [record for record in records_of(row.records) if record.offset >= offset]
            offset = batches[-1][1].next_offset

    def list_offset(
        self, topic: str, timestamp: int, partition: int = 0, version: int | None = None
    ) -> Any:
        """Return the row of a ListOffsets response for one partition."""
        wanted = ListOffsetsRequest.Topic.Partition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            topics=[ListOffsetsRequest.Topic(name=topic, partitions=[wanted])]
        )
        return self.call(request, version).topics[0].partitions[0]


def produce_request(
    topic: str,
    batch: bytes | bytearray | memoryview | None,
    partition: int = 0,
    *,
    acks: int = -1,
    topic_id: bytes = bytes(16),
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    data = ProduceRequest.Topic.Partition(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[ProduceRequest.Topic(name=topic, topic_id=topic_id, partition_data=[data])],
    )


def fetch_request(
    wanted: Iterable[tuple[str | bytes, int, int]],
    *,
    partition_max_bytes: int | None = None,
    max_bytes: int = 1 << 20,
    **fields: Any,
) -> FetchRequest:
    """Build a Fetch request. `wanted` has topic (name, or id as bytes), partition, offset."""
    topics = []
    for topic, partition, offset in wanted:
        row = FetchRequest.Topic.Partition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=max_bytes if partition_max_bytes is None else partition_max_bytes,
        )
        if isinstance(topic, bytes):
            topics.append(FetchRequest.Topic(topic_id=topic, partitions=[row]))
        else:
            topics.append(FetchRequest.Topic(topic=topic, partitions=[row]))
    return FetchRequest(topics=topics, max_bytes=max_bytes, **fields)
