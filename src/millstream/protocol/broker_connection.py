"""One connection to one broker: requests out, answers back in order.

Several requests may be on their way (`send`, then `receive` for each in the same order). Not for
several threads. After any ConnectionLost the link is of no more use.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections import deque
from typing import Final, TypeVar

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.connection_setting import Address, ConnectionSettings, Tls
from millstream.protocol.error import ConnectionLost, OptionError
from millstream.protocol.sasl import log_in
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.primitive import Buffer, DecodeError
from millstream.wire.schema import Message, codec

M = TypeVar("M", bound=Message)

_LENGTH: Final = struct.Struct(">i")
#: Every broker that can be talked to at all knows this one.
_API_VERSIONS_VERSION: Final = 0
#: No answer is as large; whatever claims to be does not speak the protocol.
_FRAME_BYTES_MAX: Final = 1 << 30


class Link:
    """Connected, and logged in, when it is made. Raises ConnectionLost."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        self.address = address
        self._settings = settings
        self._correlation_id = 0
        #: Correlation id and version of each request that was not answered yet.
        self._waiting: deque[tuple[int, int]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        #: Where frames go that are not kept: new memory costs as much as what is received into it.
        self._scratch = bytearray()
        self._socket = self._connect()
        try:
            self._negotiate()
            if settings.login is not None:
                log_in(self, settings.login)
        except BaseException:
            self.close()
            raise

    @property
    def is_idle(self) -> bool:
        """Whether every request was answered."""
        return not self._waiting

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()

    def version(self, shape: type[Message], version_max: int | None = None) -> int:
        """The highest version of a request that both sides know, up to `version_max`.

        Raises BrokerError, UNSUPPORTED_VERSION, if there is none."""
        first, last = shape.versions
        low, high = self._versions.get(shape.api_key, (0, -1))
        chosen = min(last, high, last if version_max is None else version_max)
        if chosen < max(first, low):
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} has versions {low} to {high} of"
                f" {shape.api_key.name}, and {first} to {last} are spoken here",
            )
        return chosen

    def call(self, request: Message, response: type[M], version_max: int | None = None) -> M:
        """Send a request and wait for its answer; nothing else may be on its way."""
        self.send(request, version_max)
        return self.receive(response)

    def send(self, request: Message, version_max: int | None = None) -> None:
        """Send a request whose answer `receive` will give."""
        self._send(request, self.version(type(request), version_max))

    def receive(self, response: type[M], *, is_kept: bool = True) -> M:
        """The answer to the oldest request. Record batches in it are views of its frame; unless
        that `is_kept`, they are good until the next one is received: its memory is used again."""
        correlation_id, version = self._waiting.popleft()
        frame = self._frame(is_kept)
        try:
            found, position = parse_response_header(frame, response.api_key, version)
            if found != correlation_id:
                raise DecodeError(f"answer {found} came in place of {correlation_id}")
            return codec(response, version).decode(frame, position)
        except DecodeError as error:
            self.close()
            raise self._lost(f"its answer cannot be read: {error}") from error

    def _send(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        body = codec(type(request), version).encode(request)
        parts = frame_request(
            request.api_key, version, self._correlation_id, self._settings.client_id, body
        )
        try:
            self._socket.sendall(b"".join(parts))  # type: ignore[arg-type]
        except OSError as error:
            self.close()
            raise self._lost(str(error)) from error
        self._waiting.append((self._correlation_id, version))

    def _frame(self, is_kept: bool) -> Buffer:
        (length,) = _LENGTH.unpack(self._receive_exactly(memoryview(bytearray(_LENGTH.size))))
        if not _LENGTH.size <= length <= _FRAME_BYTES_MAX:
            self.close()
            raise self._lost(f"it answered with a frame of {length} bytes: is it a Kafka broker?")
        if is_kept:
            return self._receive_exactly(memoryview(bytearray(length)))
        if len(self._scratch) < length:
            self._scratch = bytearray(length + length // 4)
        return self._receive_exactly(memoryview(self._scratch)[:length])

    def _receive_exactly(self, view: memoryview) -> memoryview:
        position, size = 0, len(view)
        try:
            while position < size:
                count = self._socket.recv_into(view[position:])
                if count == 0:
                    raise ConnectionResetError("the broker closed the connection")
                position += count
        except OSError as error:
            self.close()
            raise self._lost(_reason(error, self._settings.request_timeout_ms)) from error
        return view

    def _connect(self) -> socket.socket:
        settings = self._settings
        try:
            plain = socket.create_connection(self.address, settings.connect_timeout_ms / 1000)
        except OSError as error:
            raise self._lost(_reason(error, settings.connect_timeout_ms)) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made = plain
            if settings.tls is not None:
                made = tls_context(settings.tls).wrap_socket(
                    plain, server_hostname=self.address.host
                )
            made.settimeout(settings.request_timeout_ms / 1000)
        except OSError as error:
            plain.close()
            raise self._lost(str(error)) from error
        return made

    def _negotiate(self) -> None:
        self._send(ApiVersionsRequest(), _API_VERSIONS_VERSION)
        answer = self.receive(ApiVersionsResponse)
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in answer.api_keys
        }

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to the broker at {self.address} failed: {reason}")


def tls_context(tls: Tls) -> ssl.SSLContext:
    """The context of encrypted connections. Raises OptionError where a file is missing, OSError
    where one cannot be used."""
    for name, path in (
        ("ca", tls.ca_path),
        ("certificate", tls.certificate_path),
        ("key", tls.key_path),
    ):
        if path is not None and not os.path.isfile(path):
            raise OptionError(f"kafka.ssl.{name}.location is {path}, which is not a file here")
    context = ssl.create_default_context(cafile=tls.ca_path)
    context.check_hostname = tls.is_host_checked
    if tls.certificate_path is not None:
        context.load_cert_chain(tls.certificate_path, tls.key_path, tls.key_password)
    return context


def _reason(error: OSError, timeout_ms: int) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_ms} ms"
    return error.strerror or str(error)
