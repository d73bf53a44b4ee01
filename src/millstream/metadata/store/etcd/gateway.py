"""Calls to an etcd cluster through the JSON gateway of any of its members.

Owns the HTTP session, the choice of members, retries and timeouts, the login, and the rejection of
unsafe versions. `etcd_store` and `watch` own the meaning of calls.

A call goes to one member. If that member does not respond, the next one gets the call, until
`call_ms_max` is over. A call without a response fails with one of these:
    UnavailableError     no member was reached or accepted the call; it was certainly not run
    UncertainError       the call is not repeatable and was lost after it was sent; it may have run
    EtcdError            etcd responded with an error
    MetadataStoreError   a member has an unsafe version or another cluster, or rejects the login

Rejected versions: before 3.4.22, and 3.5.0 to 3.5.5. Their members can disagree on committed data
if one is killed (3.5.0 to 3.5.2), killed while it defragments (3.5.0 to 3.5.5), or added with
authentication on (3.4.20, 3.4.21, 3.5.5). A single member could lose acknowledged changes (before
3.4.21 and 3.5.5).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import aiohttp

from millstream.env.clock import Clock
from millstream.env.random import Random
from millstream.metadata.store.etcd import gateway_message as message
from millstream.metadata.store.etcd.address import EtcdOptions
from millstream.metadata.store.etcd.stream import EtcdStream
from millstream.metadata.store.port import (
    MetadataStoreError,
    StoreClosedError,
    UnavailableError,
    UncertainError,
)
from millstream.model.etcd_version import is_safe_etcd

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

CALLS_MAX: Final = 64
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_CONNECT_S_MAX: Final = 1.5

#: Errors of members that did not accept the call. A retry may succeed, at any member.
_NOT_TAKEN: Final = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: not leader",
    "raft proposal dropped",
)
#: Errors of calls during which etcd's leader changed or the member shut down.
_LOST: Final = ("etcdserver: request timed out", "etcdserver: leader changed", "server stopped")
#: Errors of calls whose login token has expired.
_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_HINTS: Final = {
    "database space exceeded": "its quota is used up: compact and defragment it, disarm the alarm",
    "user name is empty": "set metadata.etcd.username and metadata.etcd.password.file",
    "authentication failed": "metadata.etcd.username or the password is wrong",
    "permission denied": "the user needs to read and write all keys under the prefix",
}


class EtcdError(MetadataStoreError):
    """An error response of etcd; `code` is gRPC's."""

    def __init__(self, response: message.ErrorResponse) -> None:
        hint = next((hint for text, hint in _HINTS.items() if text in response.message), "")
        super().__init__(f"error of etcd: {response.message}" + (f" ({hint})" if hint else ""))
        self.code = response.code
        self.text = response.message


class _NotTakenError(Exception):
    """This member did not accept the call."""


class _LostError(Exception):
    """This member may have run the call; its outcome is unknown."""


class EtcdGateway:
    """Calls to one etcd cluster. Created by `open`, on the loop that uses it."""

    __slots__ = (
        "_closed",
        "_cluster_id",
        "_current",
        "_login",
        "_options",
        "_random",
        "_session",
        "_slots",
        "_streams",
        "_token",
        "_trusted",
        "_urls",
        "clock",
    )

    def __init__(self, options: EtcdOptions, clock: Clock, random: Random) -> None:
        self._options = options
        self._random = random
        self.clock = clock
        self._urls = options.address.urls
        #: Index of the member that gets the next call. Brokers start with different members.
        self._current = random.randrange(len(self._urls))
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self._session = _make_session(options)
        #: Members whose version is known to be safe.
        self._trusted: set[str] = set()
        #: Id of the etcd cluster that responded first. Responses of other clusters are rejected.
        self._cluster_id = ""
        self._token = ""
        self._login = asyncio.Lock()
        self._streams: set[EtcdStream] = set()
        self._closed = False

    @classmethod
    async def open(cls, options: EtcdOptions, clock: Clock, random: Random) -> EtcdGateway:
        """Connect: return once a member with a safe version has responded."""
        gateway = cls(options, clock, random)
        try:
            body = message.range_request(options.address.root.encode())
            response = await gateway.call("/v3/kv/range", body, message.RangeResponse)
            gateway.check_cluster(response.header.cluster_id)
        except BaseException:
            await gateway.close()
            raise
        return gateway

    async def close(self) -> None:
        """Close the session. Calls and streams end with StoreClosedError."""
        self._closed = True
        for stream in self._streams:
            stream.end()
        await self._session.close()

    async def call(self, path: str, body: bytes, kind: type[_T], *, repeatable: bool = True) -> _T:
        """Call the cluster. A call that is not repeatable is not retried once it may have
        arrived."""
        async with self._slots:
            deadline = self.clock.monotonic() + self._options.call_ms_max / 1000
            pause = _PAUSE_S_MIN
            while True:
                self.check_open()
                url = self._urls[self._current]
                try:
                    return await self._call_member(url, path, body, kind)
                except _NotTakenError as error:
                    reason = str(error)
                except _LostError as error:
                    if not repeatable:
                        raise UncertainError(
                            f"etcd was lost during a transaction: {error}"
                        ) from error
                    reason = str(error)
                self.switch_member_from(url)
                if self.clock.monotonic() + pause > deadline:
                    raise self.unavailable(reason)
                await asyncio.sleep(pause * self._random.uniform(0.5, 1.0))
                pause = min(pause * 2, _PAUSE_S_MAX)

    @asynccontextmanager
    async def stream(self, path: str, body: bytes) -> AsyncGenerator[EtcdStream, None]:
        """Open a stream of lines from one member; UnavailableError if that member fails."""
        self.check_open()
        url = self._urls[self._current]
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_S_MAX, sock_read=None, connect=None
        )
        try:
            await self._prepare(url)
            async with asyncio.timeout(self._options.attempt_ms_max / 1000):
                response = await self._session.post(
                    url + path, data=body, headers=self._headers(), timeout=timeout
                )
            try:
                if response.status != 200:
                    raise _failure(url, response.status, await response.read())
                stream = EtcdStream(response)
                self._streams.add(stream)
                try:
                    yield stream
                finally:
                    self._streams.discard(stream)
            finally:
                response.close()
        except (_NotTakenError, _LostError) as error:
            self.switch_member_from(url)
            raise self.unavailable(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.switch_member_from(url)
            raise self.unavailable(_reason(url, error)) from error

    def switch_member_from(self, url: str) -> None:
        """Use another member from now on, unless that has already happened."""
        if self._urls[self._current] == url:
            self._current = (self._current + 1) % len(self._urls)

    def switch_member(self) -> None:
        """Use another member from now on."""
        self.switch_member_from(self._urls[self._current])

    def forget_login(self, reason: str) -> None:
        """Log in again before the next call, if `reason` says that the token has expired."""
        if _has_any(reason, _STALE_TOKEN):
            self._token = ""

    def unavailable(self, reason: str) -> UnavailableError:
        return UnavailableError(f"no etcd responds at {self._options.address}: {reason}")

    def check_cluster(self, cluster_id: str) -> None:
        """Raise MetadataStoreError if a response is from another etcd cluster than earlier ones."""
        if self._cluster_id and cluster_id and cluster_id != self._cluster_id:
            raise MetadataStoreError(
                f"the etcd members at {self._options.address} are of different clusters, or one was"
                f" replaced: {self._cluster_id} and {cluster_id}"
            )
        self._cluster_id = cluster_id or self._cluster_id

    def check_open(self) -> None:
        """Raise StoreClosedError once the gateway is closed."""
        if self._closed:
            raise StoreClosedError("the metadata store is closed")

    async def _call_member(self, url: str, path: str, body: bytes, kind: type[_T]) -> _T:
        """Make one attempt, and a second one if the login has expired."""
        await self._prepare(url)
        token = self._token
        try:
            return await self._post(url, path, body, kind)
        except EtcdError as error:
            if not token or not _has_any(error.text, _STALE_TOKEN):
                raise
            if self._token == token:
                self.forget_login(error.text)
        await self._prepare(url)
        return await self._post(url, path, body, kind)

    async def _prepare(self, url: str) -> None:
        """Check the member's version, and log in."""
        if url not in self._trusted:
            response = await self._get_version(url)
            check_version(response.etcdserver, url)
            self._trusted.add(url)
        if self._options.username and not self._token:
            async with self._login:
                if not self._token:
                    self._token = await self._log_in(url)

    async def _get_version(self, url: str) -> message.VersionResponse:
        try:
            async with self._session.get(url + "/version") as response:
                return message.decode(await response.read(), message.VersionResponse)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _NotTakenError(_reason(url, error)) from error
        except ValueError as error:
            raise _NotTakenError(f"{url}: does not respond like an etcd") from error

    async def _log_in(self, url: str) -> str:
        username, password = self._options.username or "", self._options.password or ""
        body = message.authenticate_request(username, password)
        try:
            response = await self._post(url, "/v3/auth/authenticate", body, message.TokenResponse)
        except _LostError as error:
            raise _NotTakenError(str(error)) from error
        return response.token

    async def _post(self, url: str, path: str, body: bytes, kind: type[_T]) -> _T:
        try:
            async with self._session.post(
                url + path, data=body, headers=self._headers()
            ) as response:
                content = await response.read()
                if response.status != 200:
                    raise _failure(url, response.status, content)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _NotTakenError(_reason(url, error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.check_open()
            raise _LostError(_reason(url, error)) from error
        try:
            return message.decode(content, kind)
        except ValueError as error:
            raise _LostError(f"{url}: malformed response: {error}") from error

    def _headers(self) -> dict[str, str]:
        # `hasleader`: a member that is isolated returns an error instead of not responding.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self._token:
            headers["Authorization"] = self._token
        return headers


def check_version(version: str, url: str) -> None:
    """Raise MetadataStoreError if an etcd of this version may lose acknowledged changes."""
    try:
        is_safe = is_safe_etcd(version)
    except ValueError as error:
        raise MetadataStoreError(f"etcd at {url} has a {error}") from None
    if not is_safe:
        raise MetadataStoreError(
            f"etcd {version} at {url} is rejected, because it may lose data: etcd before 3.4.22"
            " and from 3.5.0 to 3.5.5 has known data inconsistencies; upgrade it"
        )


def _make_session(options: EtcdOptions) -> aiohttp.ClientSession:
    context: ssl.SSLContext | bool = True
    if options.address.uses_tls:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.certificate_file is not None:
            context.load_cert_chain(options.certificate_file, options.key_file)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=30),
        timeout=aiohttp.ClientTimeout(
            total=options.attempt_ms_max / 1000, sock_connect=_CONNECT_S_MAX
        ),
        read_bufsize=4 * 1024 * 1024,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def _failure(url: str, status: int, content: bytes) -> Exception:
    """Return the exception for an error response."""
    error = message.decode_error(content)
    if error is None and status == 404:
        return MetadataStoreError(
            f"{url} has no JSON gateway: start etcd with --enable-grpc-gateway"
        )
    if error is None:
        return _LostError(f"{url}: malformed response: {content[:200]!r}")
    if _has_any(error.message, _NOT_TAKEN):
        return _NotTakenError(f"{url}: {error.message}")
    if _has_any(error.message, _LOST):
        return _LostError(f"{url}: {error.message}")
    return EtcdError(error)


def _has_any(text: str, any_of: tuple[str, ...]) -> bool:
    return any(part in text for part in any_of)


def _reason(url: str, error: BaseException) -> str:
    text = str(error)
    if isinstance(error, aiohttp.ClientConnectorError):
        text = str(error.os_error)
    elif isinstance(error, TimeoutError):
        text = "no response in time"
    return f"{url}: {text or type(error).__name__}"
