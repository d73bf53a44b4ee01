"""A connection to one broker, on which requests may be pipelined.

A caller may `send` several requests and then `receive` their responses in the same order. A
connection belongs to one thread. After a ConnectionLost it is closed for good.

A broker may limit how long a login is valid (KIP-368). The connection then logs in again before the
first request after most of that time, unless responses are pending.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections import deque
from typing import Final, TypeVar

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.connection_setting import Address, ConnectionSettings, Tls
from millstream.protocol.error import ConnectionLost, SettingError
from millstream.protocol.sasl import log_in
from millstream.wire.api import PRIVATE_FROM
from millstream.wire.framing import frame_request, parse_response_header
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.primitive import Buffer, DecodeError
from millstream.wire.schema import Message, codec

M = TypeVar("M", bound=Message)

_LENGTH: Final = struct.Struct(">i")
#: Every broker supports this version, so the first request can use it.
_API_VERSIONS_VERSION: Final = 0
#: The share of a login's lifetime after which the connection logs in again.
_LOGIN_SHARE: Final = 0.8
#: A larger frame means that the server does not speak the protocol.
_FRAME_BYTES_MAX: Final = 1 << 30


class BrokerConnection:
    """A connected and authenticated socket. Opening it raises ConnectionLost or BrokerError."""

    def __init__(self, address: Address, settings: ConnectionSettings) -> None:
        self.address = address
        self._settings = settings
        self._correlation_id = 0
        #: Correlation id and version of each request whose response is pending.
        self._pending: deque[tuple[int, int]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        #: Holds frames that the caller does not keep: to allocate costs as much as to receive.
        self._scratch = bytearray()
        #: Monotonic time of the next login; None if the present one does not end.
        self._log_in_at: float | None = None
        self._socket = self._connect()
        try:
            self._negotiate()
            self._log_in()
        except BaseException:
            self.close()
            raise

    @property
    def is_idle(self) -> bool:
        """Whether no response is pending."""
        return not self._pending

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()

    def version(self, shape: type[Message], version_max: int | None = None) -> int:
        """Return the highest version of a request that both sides support, up to `version_max`.

        Raises BrokerError UNSUPPORTED_VERSION if there is none."""
        first, last = shape.versions
        if shape.api_key >= PRIVATE_FROM:
            # ApiVersions does not list Millstream's own APIs.
            return last
        low, high = self._versions.get(shape.api_key, (0, -1))
        chosen = min(last, high, last if version_max is None else version_max)
        if chosen < max(first, low):
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} supports versions {low} to {high} of"
                f" {shape.api_key.name}, this client {first} to {last}",
            )
        return chosen

    def call(self, request: Message, response: type[M], version_max: int | None = None) -> M:
        """Send a request and return its response. No other response may be pending."""
        self.send(request, version_max)
        return self.receive(response)

    def send(self, request: Message, version_max: int | None = None) -> None:
        """Send a request; `receive` returns its response."""
        if self._log_in_at is not None and not self._pending and time.monotonic() > self._log_in_at:
            self._log_in()
        self._send(request, self.version(type(request), version_max))

    def receive(self, response: type[M], *, is_kept: bool = True) -> M:
        """Return the response to the oldest request.

        Record batches in it are views of the frame. Unless `is_kept`, the next `receive` overwrites
        the frame."""
        correlation_id, version = self._pending.popleft()
        frame = self._frame(is_kept)
        try:
            found, position = parse_response_header(frame, response.api_key, version)
            if found != correlation_id:
                raise DecodeError(f"expected response {correlation_id}, received {found}")
            return codec(response, version).decode(frame, position)
        except DecodeError as error:
            self.close()
            raise self._lost(f"its response cannot be decoded: {error}") from error

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
        self._pending.append((self._correlation_id, version))

    def _frame(self, is_kept: bool) -> Buffer:
        (length,) = _LENGTH.unpack(self._receive_exactly(memoryview(bytearray(_LENGTH.size))))
        if not _LENGTH.size <= length <= _FRAME_BYTES_MAX:
            self.close()
            raise self._lost(f"it sent a frame of {length} bytes: is it a Kafka broker?")
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
            stream = plain
            if settings.tls is not None:
                stream = tls_context(settings.tls).wrap_socket(
                    plain, server_hostname=self.address.host
                )
            stream.settimeout(settings.request_timeout_ms / 1000)
        except OSError as error:
            plain.close()
            raise self._lost(str(error)) from error
        return stream

    def _negotiate(self) -> None:
        self._send(ApiVersionsRequest(), _API_VERSIONS_VERSION)
        response = self.receive(ApiVersionsResponse)
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    def _log_in(self) -> None:
        login = self._settings.login
        if login is None:
            return
        self._log_in_at = None
        lifetime_ms = log_in(self, login)
        if lifetime_ms > 0:
            self._log_in_at = time.monotonic() + lifetime_ms / 1000 * _LOGIN_SHARE

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to the broker at {self.address} failed: {reason}")


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of a connection.

    Raises SettingError if a file does not exist, OSError if one cannot be used."""
    for name, path in (
        ("ca", tls.ca_path),
        ("certificate", tls.certificate_path),
        ("key", tls.key_path),
    ):
        if path is not None and not os.path.isfile(path):
            raise SettingError(f"ssl.{name}.location is {path}, which is not a file on this host")
    context = ssl.create_default_context(cafile=tls.ca_path)
    context.check_hostname = tls.is_host_checked
    if tls.certificate_path is not None:
        context.load_cert_chain(tls.certificate_path, tls.key_path, tls.key_password)
    return context


def _reason(error: OSError, timeout_ms: int) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {timeout_ms} ms"
    return error.strerror or str(error)
