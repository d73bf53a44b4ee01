"""TLS on an accepted socket: the protocol of the socket, and the transport of its `Connection`.

Encrypts and decrypts in memory, by OpenSSL. The socket's own transport does the I/O, so its flow
control applies: reading stops when the connection pauses, and the bytes that wait to be sent are
counted once.

States:
    handshake   from the accept on. The gate counts the connection, and the handshake.
    open        the handshake is complete and the client is identified; the `Connection` exists for
                the broker only from here on
    closed      the handshake failed, or the connection was closed or lost

A handshake is bounded in time and in number: where too many are in progress, the oldest ends, so
that clients which stall do not keep others out. A failed one is logged with its reason, and counted
by a `HandshakeFailure`.

An open connection is aborted if its client sends many records without data in a row (KeyUpdate,
requests for renegotiation), or leaves too many bytes unread.

Memory: OpenSSL's buffers keep their largest size, so a connection reads and writes at most
`CHUNK_BYTES` at a time. Input is decrypted in the receive buffer that all connections share.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from millstream.env.clock import Clock
from millstream.env.disk import Buffer
from millstream.model.failure import CallbackKind
from millstream.model.principal import Principal
from millstream.net.gate import Admitted, Gate
from millstream.net.rejection import RejectedRequestError, Rejection
from millstream.net.tls_sender import CHUNK_BYTES

if TYPE_CHECKING:
    from millstream.net.connection import Connection

#: Smaller buffers are joined, so that they share a TLS record.
_JOINED_BYTES_MAX: Final = 16 * 1024
#: Linux only.
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
#: Bytes of records without data that a client may send in a row. A record has at most 16 KiB.
SILENT_BYTES_MAX: Final = 64 * 1024
#: Bytes that may wait to be sent while the connection reads. It stops reading far below.
UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
#: The first byte of a TLS connection.
_HANDSHAKE_RECORD: Final = 0x16


class HandshakeFailure(StrEnum):
    """Reasons of failed handshakes; the values are labels of the metrics."""

    #: The client does not speak TLS.
    NOT_TLS = "not_tls"
    #: No version of TLS or cipher suite in common.
    PROTOCOL = "protocol"
    #: The client has no certificate, but needs one.
    NO_CERTIFICATE = "no_certificate"
    #: The client's certificate is expired, revoked, or not trusted.
    CERTIFICATE = "certificate"
    #: The client rejects the certificate of the broker.
    REJECTED = "rejected_by_client"
    #: No mapping rule matches the name in the client's certificate.
    PRINCIPAL = "principal"
    TIMEOUT = "timeout"
    #: Too many handshakes in progress.
    LIMIT = "limit"
    #: The client has closed the connection.
    CLOSED = "closed"
    OTHER = "other"


_REASONS: Final = {
    "HTTP_REQUEST": HandshakeFailure.NOT_TLS,
    "UNSUPPORTED_PROTOCOL": HandshakeFailure.PROTOCOL,
    "VERSION_TOO_LOW": HandshakeFailure.PROTOCOL,
    "WRONG_VERSION_NUMBER": HandshakeFailure.PROTOCOL,
    "NO_SHARED_CIPHER": HandshakeFailure.PROTOCOL,
    "NO_PROTOCOLS_AVAILABLE": HandshakeFailure.PROTOCOL,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": HandshakeFailure.NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": HandshakeFailure.CERTIFICATE,
}
_HINTS: Final = {
    HandshakeFailure.PROTOCOL: "the client and ssl.enabled.protocols have no version of TLS or"
    " cipher suite in common",
    HandshakeFailure.NO_CERTIFICATE: "the client has no certificate, but ssl.client.auth requires"
    " one: set the client's key store",
    HandshakeFailure.CERTIFICATE: "the certificate of the client is not accepted",
    HandshakeFailure.REJECTED: "the client rejects the certificate of this broker: check its trust"
    " store and the host name",
}


class TlsEndpoint(Protocol):
    """What a listener decides about TLS."""

    def context(self) -> ssl.SSLContext:
        """Return the context of the next connection."""
        ...

    def identify(self, certificate: bytes | None) -> Principal:
        """Return the client's identity by its verified certificate, in DER; None if it has none.

        Raises ValueError with the reason if the client is not accepted."""
        ...


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """One connection with TLS. Made by the listener for each socket. Event loop only."""

    __slots__ = (
        "_clock",
        "_connection",
        "_endpoint",
        "_expires_at",
        "_gate",
        "_incoming",
        "_is_closing",
        "_is_open",
        "_is_reading",
        "_make_room",
        "_on_ended",
        "_on_writable",
        "_outgoing",
        "_peer",
        "_raw",
        "_received_bytes",
        "_silent_bytes",
        "_tls",
        "has_room",
    )

    def __init__(
        self,
        gate: Gate,
        clock: Clock,
        endpoint: TlsEndpoint,
        connection: Connection,
        on_ended: Callable[[TlsTransport], None],
        make_room: Callable[[], None],
    ) -> None:
        asyncio.Transport.__init__(self)
        self._gate = gate
        self._clock = clock
        self._endpoint = endpoint
        self._connection = connection
        #: Called once the handshake has ended or failed.
        self._on_ended = on_ended
        #: Called where too many handshakes are in progress: ends the oldest.
        self._make_room = make_room
        self._raw: asyncio.Transport | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        #: Set while the gate counts the handshake.
        self._peer: Admitted | None = None
        self._expires_at = 0.0
        self._received_bytes = 0
        #: Bytes that were received since the client's last data.
        self._silent_bytes = 0
        self._is_open = False
        self._is_closing = False
        self._is_reading = True
        #: Whether the socket's transport accepts more bytes.
        self.has_room = True
        self._on_writable: Callable[[], None] | None = None

    @property
    def connection(self) -> Connection | None:
        """The connection, once the handshake is complete."""
        return self._connection if self._is_open else None

    # Called by the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = self._raw = cast("asyncio.Transport", transport)
        peer = self._gate.accept(raw, self._connection.listener, self._clock.monotonic())
        if peer is None:
            self._is_closing = True
            self._on_ended(self)
            return
        self._peer = peer
        self._gate.handshakes += 1
        limits = self._gate.limits
        self._expires_at = self._clock.monotonic() + limits.handshake_ms_max / 1000
        if self._gate.handshakes > limits.handshakes_max:
            self._make_room()
        self._tls = self._endpoint.context().wrap_bio(
            self._incoming, self._outgoing, server_side=True
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._gate.receive_buffer[:CHUNK_BYTES]

    def buffer_updated(self, count: int) -> None:
        if self._is_closing or not count:
            return
        data = self._gate.receive_buffer[:count]
        if not self._received_bytes and data[0] != _HANDSHAKE_RECORD:
            self._fail(
                HandshakeFailure.NOT_TLS,
                "the client does not speak TLS: set its security.protocol to SSL or SASL_SSL, or"
                " connect to a plaintext listener",
            )
            return
        self._received_bytes += count
        self._silent_bytes += count
        self._incoming.write(data)
        if not self._is_open:
            self._continue_handshake()
        if self._is_open and self._is_reading:
            self._read()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.has_room = False
        if self._is_open and self._on_writable is None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        self.has_room = True
        if self._on_writable is not None:
            self._on_writable()
        elif self._is_open:
            self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._raw = None
        self._on_writable = None
        if self._is_open:
            self._is_open = False
            self._connection.connection_lost(exc)
        elif self._peer is not None:
            # A health check of a load balancer connects and sends nothing.
            text = (
                "the client disconnected during the handshake; it may not accept the certificate of"
                " this broker"
            )
            self._count(HandshakeFailure.CLOSED, text if self._received_bytes else "")

    # Handshake

    def check(self, now: float) -> None:
        """Abort the handshake if it takes too long."""
        if self._peer is not None and now > self._expires_at:
            limit_ms = self._gate.limits.handshake_ms_max
            self._fail(HandshakeFailure.TIMEOUT, f"no handshake within {limit_ms} ms")

    def evict(self) -> bool:
        """End the handshake in favor of a newer one. Return False if none is in progress."""
        if self._peer is None:
            return False
        limit = self._gate.limits.handshakes_max
        self._fail(
            HandshakeFailure.LIMIT,
            f"the oldest of {limit} handshakes in progress ended in favor of a new one",
        )
        return True

    def _continue_handshake(self) -> None:
        tls = cast("ssl.SSLObject", self._tls)
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            # The alert for the client.
            self._flush()
            self._fail(*_explain(error))
            return
        self._flush()
        try:
            principal = self._endpoint.identify(tls.getpeercert(binary_form=True))
        except ValueError as error:
            self._fail(HandshakeFailure.PRINCIPAL, str(error))
            return
        peer, self._peer = self._peer, None
        self._gate.handshakes -= 1
        self._is_open = True
        self._acknowledge()
        self._on_ended(self)
        self._connection.begin(self, cast("Admitted", peer), principal)

    def _acknowledge(self) -> None:
        """Acknowledge the client's last handshake message now.

        No message follows it, and the system would delay the acknowledgement by 40 ms. Clients that
        use Nagle's algorithm wait for it before they send their first request."""
        raw = cast("asyncio.Transport", self._raw)
        found = raw.get_extra_info("socket")
        if found is not None and _QUICK_ACK is not None:
            with suppress(OSError):
                found.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _fail(self, failure: HandshakeFailure, reason: str) -> None:
        """Count and log a failed handshake, and close the socket."""
        self._is_closing = True
        self._count(failure, reason)
        raw = cast("asyncio.Transport", self._raw)
        if failure is HandshakeFailure.TIMEOUT or failure is HandshakeFailure.LIMIT:
            raw.abort()
        else:
            raw.close()

    def _count(self, failure: HandshakeFailure, reason: str) -> None:
        address = cast("Admitted", self._peer).address
        self._peer = None
        gate = self._gate
        gate.handshakes -= 1
        gate.counters.handshake_failures[failure] += 1
        gate.leave(address, self._connection.listener, "handshake")
        if reason:
            error = RejectedRequestError(Rejection.HANDSHAKE, reason, api="a TLS connection")
            gate.rejections.note(error, address, self._clock.monotonic())
        if gate.on_failed_handshake is not None:
            gate.failures.run(
                CallbackKind.CONNECTION,
                "a failed TLS handshake",
                gate.on_failed_handshake,
                self._connection.listener,
                address,
                failure,
                reason,
            )
        self._on_ended(self)

    # Input

    def _read(self) -> None:
        """Decrypt the bytes that have arrived, and pass them to the connection."""
        connection = self._connection
        has_more = True
        while has_more and self._is_reading and not self._is_closing:
            buffer = connection.get_buffer(-1)
            try:
                filled, has_more = self._decrypt(buffer)
            except ssl.SSLError:
                connection.abort("malformed")
                return
            if filled:
                self._silent_bytes = 0
                connection.buffer_updated(filled)
            elif has_more:
                # The client has closed its side.
                self.close()
        if self._outgoing.pending:
            self._flush()
        # Records without data, such as KeyUpdate, cost time. Some have a response, for which the
        # connection does not stop reading.
        is_unread = self._is_reading and self.get_write_buffer_size() > UNREAD_BYTES_MAX
        if is_unread or self._silent_bytes > SILENT_BYTES_MAX:
            connection.abort("malformed")

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Fill the buffer; return the number of bytes, and whether there may be more to read."""
        read = cast("ssl.SSLObject", self._tls).read
        filled = 0
        try:
            while filled < len(buffer):
                count = cast("int", read(len(buffer) - filled, cast("Any", buffer[filled:])))
                if not count:
                    break
                filled += count
        except ssl.SSLWantReadError:
            return filled, False
        return filled, True

    # Called by the connection, as its transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection. There is no `socket`: bytes must not bypass
        TLS."""
        if name == "ssl_object":
            return self._tls
        if name == "socket" or self._raw is None:
            return default
        return self._raw.get_extra_info(name, default)

    def set_sender(self, on_writable: Callable[[], None], high: int) -> None:
        """Call `on_writable` instead of the connection once there is room again."""
        self._on_writable = on_writable
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high=high)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._raw is not None:
            self._raw.resume_reading()
            # Bytes that arrived before the pause may not be decrypted yet.
            asyncio.get_running_loop().call_soon(self._read_rest)

    def _read_rest(self) -> None:
        if self._is_open and self._is_reading:
            self._read()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        small: list[Buffer] = []
        small_bytes = 0
        for data in list_of_data:
            if len(data) < _JOINED_BYTES_MAX:
                small.append(data)
                small_bytes += len(data)
                if small_bytes < _JOINED_BYTES_MAX:
                    continue
            if small_bytes:
                self._encrypt(b"".join(small))
                small, small_bytes = [], 0
            if len(data) >= _JOINED_BYTES_MAX:
                self._encrypt(data)
        if small_bytes:
            self._encrypt(b"".join(small))

    def _encrypt(self, data: Buffer) -> None:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            if self._is_closing:
                return
            try:
                cast("ssl.SSLObject", self._tls).write(
                    cast("Any", view[start : start + CHUNK_BYTES])
                )
            except ssl.SSLError:
                self.abort()
                return
            self._flush()

    def _flush(self) -> None:
        if self._raw is not None and self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def close(self) -> None:
        """Send what was written and the end of TLS, then close the socket."""
        if self._is_closing or self._raw is None:
            return
        self._is_closing = True
        if self._is_open:
            # `unwrap` raises, because the client's end of TLS has not arrived. The broker does not
            # wait for it.
            with suppress(ssl.SSLError):
                cast("ssl.SSLObject", self._tls).unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        """Close the socket now; bytes that were not sent are lost."""
        self._is_closing = True
        if self._raw is not None:
            self._raw.abort()


def _explain(error: ssl.SSLError) -> tuple[HandshakeFailure, str]:
    """Return the kind of a failure, and a sentence for the log."""
    reason = error.reason or ""
    if "ALERT" in reason:
        # Alerts of the client, such as TLSV1_ALERT_UNKNOWN_CA.
        failure = HandshakeFailure.REJECTED
    else:
        failure = _REASONS.get(reason, HandshakeFailure.OTHER)
    detail = getattr(error, "verify_message", "") or reason or str(error)
    hint = _HINTS.get(failure)
    return failure, f"{hint} ({detail})" if hint else str(detail)
