"""One client connection: bytes into frames, responses into bytes.

Owns the transport, the bytes of incomplete frames, and the reasons for which reading is stopped. A
connection does not know what a frame means: each whole frame goes to `FrameHandler.receive`, in
order, as a view that is valid only during that call. The whole frames of one read are handled in
one synchronous pass, and the responses of the pass leave in one write. After `pass_requests_max`
frames or `PASS_S_MAX` seconds the loop serves other connections before the rest. From the first
response with a file range on, responses leave through a `FileSender` instead of the transport; on a
connection with TLS through a `TlsSender`. A queued range belongs to the connection, which hands it
to the sender or releases it.

Reading stops, and frames that were already read wait in `_backlog`, while any of these holds:

    HELD     the handler has as many requests in flight as it may (`hold`, `release`)
    BLOCKED  the client does not read its responses (more than `WRITE_BUFFER_BYTES_MAX` are
             pending), or the transport must be empty before a sender takes over
    MEMORY   a frame waits for memory (see `gate`)
    THROTTLED  the client is above a quota, until a timer ends (`throttle`)
    YIELDED  other connections have their turn, until the next iteration of the loop
    CLOSING  the connection is being closed; this never ends

Once a second the listener calls `check` for every connection. It closes a connection whose client

    stalls in a frame   it needs longer than `frame_ms_max` and a modest rate allow
    reads nothing       none of its responses for `unread_ms_max`, also while the connection is
                        being closed
    is idle             it sends nothing for `idle_ms_max`, and no request is in flight
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from struct import Struct
from typing import cast

from millstream.env.clock import Clock
from millstream.env.disk import Buffer
from millstream.model.principal import ANONYMOUS, Principal
from millstream.net.file_sender import FileSender, Item, in_memory, release
from millstream.net.frame_handler import FrameHandler
from millstream.net.gate import Admitted, Gate
from millstream.net.rejection import RejectedRequestError, Rejection
from millstream.net.tls_sender import TlsSender
from millstream.net.tls_transport import TlsTransport

_logger = logging.getLogger(__name__)

HELD = 1
BLOCKED = 2
MEMORY = 4
CLOSING = 8
THROTTLED = 16
YIELDED = 32

WRITE_BUFFER_BYTES_MAX = 4 * 1024 * 1024
#: Time for the frames of one connection before other connections have their turn.
PASS_S_MAX = 0.002

_LENGTH = Struct(">i")
_LENGTH_BYTES = 4
#: The first two bytes of a TLS connection: a handshake record of version 3.
_TLS_HANDSHAKE = 0x1603
#: The slowest rate at which a long frame may arrive: 16 KiB/s.
_FRAME_BYTES_PER_MS_MIN = 16


def _bad_size(size: int, frame_bytes_max: int) -> RejectedRequestError:
    if size >> 16 == _TLS_HANDSHAKE:
        text = (
            "the client speaks TLS, but this listener is plaintext: connect to another port, or set"
            " the client's security.protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    else:
        text = f"{size} bytes; 1 to {frame_bytes_max} are allowed"
    return RejectedRequestError(Rejection.FRAME, text)


def _no_login_memory() -> RejectedRequestError:
    return RejectedRequestError(
        Rejection.AUTHENTICATION, "too many incomplete requests of clients without a login"
    )


class Connection(asyncio.BufferedProtocol):
    """Splits input into frames, and sends responses. Made by the listener for each socket."""

    __slots__ = (
        "_active_at",
        "_backlog",
        "_blocked_since",
        "_clock",
        "_close_reason",
        "_filled",
        "_frame",
        "_frame_bytes",
        "_frame_since",
        "_gate",
        "_handler",
        "_in_pass",
        "_is_login_frame",
        "_make_handler",
        "_on_lost",
        "_outgoing",
        "_paused",
        "_sender",
        "_stopped",
        "_throttle_timer",
        "_throttled_until",
        "_transport",
        "_unread_bytes",
        "_wants_sender",
        "address",
        "frame_bytes_max",
        "listener",
        "port",
        "principal",
        "received_at",
    )

    def __init__(
        self,
        gate: Gate,
        clock: Clock,
        make_handler: Callable[[Connection], FrameHandler],
        on_lost: Callable[[Connection], None],
        listener: str = "",
    ) -> None:
        self._gate = gate
        #: Name of the listener that accepted the connection.
        self.listener = listener
        self._clock = clock
        self._make_handler = make_handler
        self._on_lost = on_lost
        self._handler: FrameHandler | None = None
        self._transport: asyncio.Transport | None = None
        #: The client's address; the port is 0 if the network has none.
        self.address = ""
        self.port = 0
        #: The client's identity by its TLS certificate; ANONYMOUS without one.
        self.principal = ANONYMOUS
        #: Maximum size of this connection's frames until its client is authenticated; None for the
        #: gate's. Until then an incomplete frame does not use the memory for requests.
        self.frame_bytes_max: int | None = None
        #: Buffer of the frame that is being received, with its length prefix; None if the next byte
        #: goes to the shared receive buffer.
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._filled = 0
        #: Whether `_frame` belongs to the memory for logins.
        self._is_login_frame = False
        #: Bytes read but not handled, because reading is stopped; at most one receive buffer.
        self._backlog = bytearray()
        #: Bits of HELD, BLOCKED, MEMORY, THROTTLED, YIELDED and CLOSING. Outside of a pass the
        #: transport is paused (`_paused`) if and only if this is not 0.
        self._stopped = 0
        self._paused = False
        self._outgoing: list[Item] = []
        #: Sends the responses from the first file range on.
        self._sender: FileSender | TlsSender | None = None
        #: Whether a range waits in `_outgoing` until the transport's buffer is empty.
        self._wants_sender = False
        self._in_pass = False
        self._close_reason = "client"
        #: Monotonic time of the last read, and of when the current pass began.
        self.received_at = 0.0
        self._active_at = clock.monotonic()
        #: When the incomplete frame began; None if there is none.
        self._frame_since: float | None = None
        #: Since when the client has read none of `_unread_bytes`; None while it keeps up and the
        #: connection is not being closed.
        self._blocked_since: float | None = None
        self._unread_bytes = 0
        #: Monotonic time at which the throttling ends; the timer runs while THROTTLED.
        self._throttled_until = 0.0
        self._throttle_timer: asyncio.TimerHandle | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        client = self._gate.accept(self._transport, self.listener, self._clock.monotonic())
        if client is not None:
            self.begin(self._transport, client)

    def begin(
        self, transport: asyncio.Transport, client: Admitted, principal: Principal = ANONYMOUS
    ) -> None:
        """Serve a client that the gate has admitted, when its turn comes."""
        self._transport = transport
        self.address, self.port = client.address, client.port
        self.principal = principal
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self._handler = self._make_handler(self)
        wait_s = client.served_at - self._clock.monotonic()
        if wait_s > 0:
            self.throttle(wait_s)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._gate.receive_buffer
        return memoryview(self._frame)[self._filled : self._frame_bytes]

    def buffer_updated(self, count: int) -> None:
        if self._handler is None:
            return
        self.received_at = self._active_at = self._clock.monotonic()
        frame = self._frame
        if frame is None:
            self._run(self._gate.receive_buffer[:count])
            return
        self._filled += count
        if self._filled < self._frame_bytes:
            return
        size = self._frame_bytes
        self._frame = None
        if size == _LENGTH_BYTES:
            self._run(memoryview(frame))
            return
        self._frame_since = None
        if self._is_login_frame:
            self._is_login_frame = False
            self._gate.logins.release(self)
            self._run(memoryview(frame)[:size])
            return
        try:
            self._run(memoryview(frame)[:size])
        finally:
            self._gate.release(frame)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._blocked_since = self._clock.monotonic()
        self._unread_bytes = 0
        self._pause(BLOCKED)

    def resume_writing(self) -> None:
        self._unblock()
        if self._wants_sender:
            self._start_sender()
        else:
            self._resume(BLOCKED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        handler, self._handler = self._handler, None
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        self._transport = None
        if self._sender is not None:
            self._sender.close()
        if handler is None:
            return
        if self._stopped & MEMORY:
            self._gate.forget(self._memory_ready)
        if self._is_login_frame:
            self._is_login_frame = False
            self._gate.logins.release(self)
        elif self._frame is not None and self._frame_bytes > _LENGTH_BYTES:
            self._gate.release(self._frame)
        self._frame = None
        self._backlog.clear()
        self._drop_outgoing()
        self._gate.leave(self.address, self.listener, self._close_reason)
        handler.closed()

    # Called by the handler

    def hand_over(self, handler: FrameHandler) -> FrameHandler:
        """Let another handler receive the frames that follow the present pass, and everything else;
        return the former one. Nothing changes if the connection is lost."""
        former = self._handler
        if former is None:
            return handler
        self._handler = handler
        return former

    def send(self, segments: Sequence[Item]) -> None:
        """Queue a response; it leaves at the end of the current pass, or now outside of a pass.

        Does not raise: if a response cannot be sent, the connection is closed."""
        if self._transport is None:
            release(segments)
            return
        self._outgoing.extend(segments)
        if not self._in_pass:
            self._flush()

    def hold(self) -> None:
        """Handle no more frames until `release`."""
        self._pause(HELD)

    def release(self) -> None:
        self._resume(HELD)

    def throttle(self, seconds: float) -> None:
        """Handle no more frames for `seconds`, or longer if it is throttled for longer already."""
        until = self._clock.monotonic() + seconds
        if until <= self._throttled_until:
            return
        self._throttled_until = until
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        loop = asyncio.get_running_loop()
        self._throttle_timer = loop.call_later(seconds, self._throttle_ended)
        self._pause(THROTTLED)

    def _throttle_ended(self) -> None:
        self._throttle_timer = None
        # The client could send nothing meanwhile, so it was not idle.
        self._active_at = self._clock.monotonic()
        self._resume(THROTTLED)

    def reject(self, error: RejectedRequestError) -> None:
        """Log why a request gets no response, and close the connection."""
        self._gate.rejections.note(error, self.address, self._clock.monotonic())
        is_valid = error.kind in (Rejection.HANDLER, Rejection.AUTHENTICATION)
        self.close("rejected" if is_valid else "malformed")

    def close(self, reason: str) -> None:
        """Send queued responses, then close. From now on nothing is read."""
        self._close_reason = reason
        self._backlog.clear()
        self._pause(CLOSING)
        if self._blocked_since is None:
            # The transport closes once the client has read its responses, which may be never.
            self._blocked_since = self._clock.monotonic()
            self._unread_bytes = 0
        self._flush()
        if not self._wants_sender and (self._sender is None or not self._sender.unsent_bytes):
            self._end()

    def abort(self, reason: str) -> None:
        """Close now; responses that were not sent are lost."""
        self._stopped |= CLOSING
        self._close_reason = reason
        if self._transport is not None:
            self._transport.abort()

    def evict(self) -> None:
        """End the incomplete request of a client that is not authenticated, in favor of the logins
        of others. Called by the memory for logins."""
        self._frame = None
        self._is_login_frame = False
        self._gate.rejections.note(_no_login_memory(), self.address, self._clock.monotonic())
        self.abort("rejected")

    def check(self, now: float) -> None:
        """Close the connection if the client stalls or idles for too long."""
        handler = self._handler
        if handler is None:
            return
        if self._is_sending_too_slowly(now) or self._is_not_reading(now):
            self.abort("stalled")
        elif self._throttle_timer is not None:
            return
        elif (now - self._active_at) * 1000 > self._gate.limits.idle_ms_max and handler.is_idle():
            self.close("idle")

    def _is_sending_too_slowly(self, now: float) -> bool:
        since = self._frame_since
        if since is None or self._stopped:
            return False
        allowed_ms = self._gate.limits.frame_ms_max + self._frame_bytes / _FRAME_BYTES_PER_MS_MIN
        return (now - since) * 1000 > allowed_ms

    def _unblock(self) -> None:
        """Note that the client has read its responses. While the connection is being closed, the
        client must also read the last of them."""
        is_closing = bool(self._stopped & CLOSING)
        self._blocked_since = self._clock.monotonic() if is_closing else None

    def _is_not_reading(self, now: float) -> bool:
        since = self._blocked_since
        if since is None or self._transport is None:
            return False
        unread_bytes = self._unsent_bytes(self._transport)
        if unread_bytes != self._unread_bytes:
            self._unread_bytes = unread_bytes
            self._blocked_since = now
            return False
        return (now - since) * 1000 > self._gate.limits.unread_ms_max

    # Frames

    def _run(self, data: memoryview) -> None:
        """Handle all whole frames in `data`, store the rest, send the responses."""
        self._in_pass = True
        try:
            position = self._split(data)
            if position < len(data) and not self._stopped & CLOSING:
                self._store(data[position:])
        except RejectedRequestError as error:
            self.reject(error)
        finally:
            self._in_pass = False
        if self._outgoing:
            self._flush()
        self._update_reading()

    def _split(self, data: memoryview) -> int:
        receive = cast("FrameHandler", self._handler).receive
        frame_bytes_max = self.frame_bytes_max or self._gate.limits.frame_bytes_max
        remaining = self._gate.limits.pass_requests_max
        ends_at = self._clock.monotonic() + PASS_S_MAX
        position = 0
        while len(data) - position >= _LENGTH_BYTES and not self._stopped:
            (size,) = _LENGTH.unpack_from(data, position)
            if not 0 < size <= frame_bytes_max:
                raise _bad_size(size, frame_bytes_max)
            start = position + _LENGTH_BYTES
            if len(data) - start < size:
                return position
            receive(data[start : start + size])
            position = start + size
            remaining -= 1
            if position < len(data) and (not remaining or self._clock.monotonic() > ends_at):
                self._pause(YIELDED)
                asyncio.get_running_loop().call_soon(self._resume, YIELDED)
        return position

    def _store(self, rest: memoryview) -> None:
        """Store the start of an incomplete frame, or frames that may not be handled yet."""
        if self._stopped:
            self._backlog += rest
            return
        if self._frame_since is None:
            self._frame_since = self.received_at
        if len(rest) < _LENGTH_BYTES:
            self._begin(bytearray(_LENGTH_BYTES), _LENGTH_BYTES, rest)
            return
        size = _LENGTH.unpack_from(rest)[0] + _LENGTH_BYTES
        if self.frame_bytes_max is not None:
            self._store_login(size, rest)
            return
        frame = self._gate.reserve(size)
        if frame is None:
            self._backlog += rest
            self._gate.wait(size, self._memory_ready)
            self._pause(MEMORY)
            return
        self._begin(frame, size, rest)

    def _store_login(self, size: int, rest: memoryview) -> None:
        """Store the start of an incomplete frame of a client that is not authenticated."""
        frame = self._gate.reserve_for_login(self, size)
        if frame is None:
            raise _no_login_memory()
        self._is_login_frame = True
        self._begin(frame, size, rest)

    def _begin(self, frame: bytearray, size: int, start: memoryview | bytearray) -> None:
        frame[: len(start)] = start
        self._frame = frame
        self._frame_bytes = size
        self._filled = len(start)

    def _memory_ready(self) -> None:
        if self._stopped & CLOSING:
            # The backlog was dropped. The gate has reserved nothing yet.
            return
        size = _LENGTH.unpack_from(self._backlog)[0] + _LENGTH_BYTES
        self._begin(self._gate.reserve_waited(size), size, self._backlog)
        self._backlog = bytearray()
        self._frame_since = self._clock.monotonic()
        self._resume(MEMORY)

    # Pausing and resuming

    def _pause(self, why: int) -> None:
        self._stopped |= why
        if not self._in_pass:
            self._update_reading()

    def _resume(self, why: int) -> None:
        self._stopped &= ~why
        if not self._in_pass:
            self._update_reading()

    def _update_reading(self) -> None:
        """Pause or resume the transport as `_stopped` says; handle the backlog first."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._stopped:
            if not self._paused:
                transport.pause_reading()
                self._paused = True
        elif self._backlog:
            backlog, self._backlog = self._backlog, bytearray()
            self._run(memoryview(backlog))
        elif self._paused:
            self._paused = False
            transport.resume_reading()

    # Responses

    def _flush(self) -> None:
        if self._wants_sender or self._transport is None:
            return
        outgoing, self._outgoing = self._outgoing, []
        if not outgoing:
            return
        if self._sender is not None:
            self._send_direct(self._sender, outgoing)
        elif all(isinstance(item, bytes | bytearray | memoryview) for item in outgoing):
            self._transport.writelines(cast("list[Buffer]", outgoing))
        elif isinstance(self._transport, TlsTransport):
            self._sender = TlsSender(self._transport, self._drained, self._sending_failed)
            self._send_direct(self._sender, outgoing)
        elif self._transport.get_extra_info("socket") is None:
            self._write_copies(self._transport, outgoing)
        else:
            self._outgoing = outgoing
            self._wants_sender = True
            if self._transport.get_write_buffer_size():
                # The transport calls `pause_writing` now, and `resume_writing` once it is empty.
                self._transport.set_write_buffer_limits(high=0)
            else:
                self._start_sender()

    def _write_copies(self, transport: asyncio.Transport, outgoing: list[Item]) -> None:
        """Send ranges through a transport that sends only buffers."""
        try:
            buffers = in_memory(outgoing)
        except OSError as error:
            self._sending_failed(error)
        else:
            transport.writelines(buffers)
        finally:
            release(outgoing)

    def _start_sender(self) -> None:
        """Send responses through a sender from now on. The transport's buffer is empty."""
        transport = cast("asyncio.Transport", self._transport)
        self._wants_sender = False
        try:
            descriptor = transport.get_extra_info("socket").fileno()
            self._sender = FileSender(
                asyncio.get_running_loop(), descriptor, self._drained, self._sending_failed
            )
        except OSError as error:
            self._drop_outgoing()
            self._sending_failed(error)
            return
        self._flush()
        if not self._sender.unsent_bytes:
            self._drained()

    def _send_direct(self, sender: FileSender | TlsSender, outgoing: list[Item]) -> None:
        sender.send(outgoing)
        if sender.unsent_bytes > WRITE_BUFFER_BYTES_MAX and self._blocked_since is None:
            self.pause_writing()

    def _drained(self) -> None:
        self._unblock()
        if self._stopped & CLOSING:
            self._end()
        else:
            self._resume(BLOCKED)

    def _sending_failed(self, error: OSError) -> None:
        if not isinstance(error, ConnectionError):
            _logger.error("cannot send a response to %s: %s", self.address, str(error))
        self.abort("client" if isinstance(error, ConnectionError) else "error")

    def _drop_outgoing(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        release(outgoing)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _unsent_bytes(self, transport: asyncio.Transport) -> int:
        in_transport = transport.get_write_buffer_size()
        return in_transport if self._sender is None else self._sender.unsent_bytes + in_transport
