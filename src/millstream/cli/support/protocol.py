"""Requests that the client library does not have, over a plain socket.

librdkafka knows nothing of the requests that look into transactions, so `millstream txn` speaks the
protocol itself: one connection per broker, one request at a time, in the newest version that both
sides have. It has no TLS and no SASL; a cluster that asks for them refuses it.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Final, Self

from millstream.cli.support.failure import CommandError, ExitCode, no_connection
from millstream.model.error import ErrorCode
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import Message, codec

_LENGTH: Final = struct.Struct(">i")
_CLIENT_ID: Final = "millstream-cli"
_RECEIVE_BYTES: Final = 1 << 16
_PLAIN: Final = "plaintext"


class BrokerConnection:
    """To one broker."""

    __slots__ = ("_address", "_serial", "_socket", "_versions")

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._address = f"{host}:{port}"
        self._serial = 0
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
            answer = self._exchange(
                ApiVersionsRequest(client_software_name=_CLIENT_ID, client_software_version="1"),
                ApiVersionsResponse,
                3,
            )
        except OSError as error:
            raise self._failure(error) from None
        self._versions: dict[int, tuple[int, int]] = {
            row.api_key: (row.min_version, row.max_version) for row in answer.api_keys
        }

    def call(self, request: Message, response: type[Message]) -> Any:
        """The broker's answer. Errors in it are for the caller to see."""
        key = request.api_key
        lowest, highest = self._versions.get(key, (1, 0))
        version = min(request.versions[1], highest)
        if version < max(lowest, request.versions[0]):
            raise CommandError(
                ExitCode.FAILED, f"the broker at {self._address} does not have {key.name}."
            )
        try:
            return self._exchange(request, response, version)
        except OSError as error:
            raise self._failure(error) from None

    def _exchange(self, request: Message, response: type[Message], version: int) -> Any:
        self._serial += 1
        body = codec(type(request), version).encode(request)
        frame = frame_request(request.api_key, version, self._serial, _CLIENT_ID, body)
        self._socket.sendall(b"".join(frame))  # type: ignore[arg-type]  # no files in requests
        (size,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        answer = self._receive(size)
        try:
            _, position = parse_response_header(answer, request.api_key, version)
            return codec(response, version).decode(answer, position)
        except DecodeError as error:
            raise CommandError(
                ExitCode.FAILED, f"{self._address} does not answer as a broker would: {error}"
            ) from None

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), _RECEIVE_BYTES))
            if not part:
                raise ConnectionError("the connection was closed")
            data += part
        return bytes(data)

    def _failure(self, error: OSError) -> CommandError:
        return no_connection(self._address, str(error) or "it did not answer in time")

    def close(self) -> None:
        self._socket.close()


class Cluster:
    """All brokers, each connected to when it is first asked."""

    __slots__ = ("_connections", "_timeout_s", "metadata")

    def __init__(self, servers: str, properties: dict[str, str], timeout_s: float) -> None:
        protocol = properties.get("security.protocol", _PLAIN)
        if protocol.lower() != _PLAIN:
            raise CommandError(
                ExitCode.USAGE,
                f"this command speaks plain text only, not {protocol}: use a listener without"
                " security, or kafka-transactions.sh.",
            )
        self._timeout_s = timeout_s
        self._connections: dict[int, BrokerConnection] = {}
        self.metadata: MetadataResponse = self._first_answer(servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    @property
    def broker_ids(self) -> list[int]:
        return sorted(broker.node_id for broker in self.metadata.brokers)

    def broker(self, node_id: int) -> BrokerConnection:
        found = self._connections.get(node_id)
        if found is None:
            for broker in self.metadata.brokers:
                if broker.node_id == node_id:
                    found = BrokerConnection(broker.host, broker.port, self._timeout_s)
                    self._connections[node_id] = found
                    return found
            raise CommandError(ExitCode.NO_CONNECTION, f"broker {node_id} is not there just now.")
        return found

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition."""
        for row in self.metadata.topics:
            for each in row.partitions:
                if row.name == topic and each.partition_index == partition:
                    return each.leader_id
        raise CommandError(ExitCode.NOT_FOUND, f"there is no partition {partition} of {topic!r}.")

    def _first_answer(self, servers: str) -> MetadataResponse:
        failure: CommandError | None = None
        for server in servers.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit():
                raise CommandError(ExitCode.USAGE, f"{server!r} is not HOST:PORT.")
            try:
                connection = BrokerConnection(host.strip("[]"), int(port), self._timeout_s)
            except CommandError as error:
                failure = error
                continue
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            answer: MetadataResponse = connection.call(request, MetadataResponse)
            connection.close()
            return answer
        assert failure is not None
        raise failure


def refusal(code: int, what: str) -> CommandError:
    """The failure for an error code of the protocol; `what` says what was being done."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = str(code)
    return CommandError(ExitCode.FAILED, f"{what}: the broker answered {name}.")
