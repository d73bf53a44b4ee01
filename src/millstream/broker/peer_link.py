"""Batched requests to other brokers: items for one broker leave in few requests.

A `PeerLink` leads to one broker and uses one API, whose requests carry any number of items. A
`PeerApi` builds the requests and completes the items. Items wait for the end of the loop's turn and
leave together. Several requests may be in flight; at the limit, further items wait. The link has
one connection, made when it is first needed, and made again after it was lost.

Everything is bounded: pending items, items per request, requests in flight, and the time for a
response. An item that cannot be delivered fails with NETWORK_EXCEPTION: the other broker may have
acted on it or not. The link does not retry.

`PeerLinks` holds a link to each broker in the metadata. When a broker leaves or restarts, its link
is closed and the items in it fail.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from millstream.env.network import Network
from millstream.env.supervisor import Policy, SupervisedTask, Supervisor
from millstream.metadata.cluster_record import Endpoint
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.replication.peer import Peer, PeerError
from millstream.wire.schema import Message

_logger = logging.getLogger(__name__)

_CONNECT_S_MAX: Final = 2.0
#: Longer than other brokers wait for their replicas, after which they respond.
_RESPONSE_S_MAX: Final = 10.0
_PENDING_MAX: Final = 20_000
_REQUEST_ITEMS_MAX: Final = 1000
_REQUESTS_MAX: Final = 4

T = TypeVar("T")


def known_code(number: int) -> ErrorCode:
    """Return the error code with this number.

    Return UNKNOWN_SERVER_ERROR for a number that only newer brokers know."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class PeerApi(ABC, Generic[T]):
    """One API between brokers, in the one version that they use among themselves."""

    version: ClassVar[int]
    response: ClassVar[type[Message]]

    @abstractmethod
    def request(self, items: Sequence[T]) -> Message:
        """Return one request for all of `items`."""

    @abstractmethod
    def complete(self, items: Sequence[T], response: Any) -> None:
        """Complete or fail each item of the request with its part of the response."""

    @abstractmethod
    def fail(self, item: T, code: ErrorCode) -> None:
        """Fail an item; an item that is complete or has failed is not changed."""


@dataclass(frozen=True, slots=True)
class PeerConnector:
    """How this broker connects to others."""

    network: Network
    #: The listener through which brokers reach each other.
    listener_name: str
    client_id: str
    supervisor: Supervisor
    failures: CallbackFailures


class PeerLink(Generic[T]):
    """Sends items to one broker by one API. Event loop only."""

    __slots__ = (
        "_api",
        "_connecting",
        "_connector",
        "_endpoint",
        "_inflight",
        "_is_closed",
        "_is_flush_due",
        "_peer",
        "_pending",
    )

    def __init__(self, endpoint: Endpoint, api: PeerApi[T], connector: PeerConnector) -> None:
        self._endpoint = endpoint
        self._api = api
        self._connector = connector
        #: Items that no request carries yet.
        self._pending: deque[T] = deque()
        #: Requests without a response.
        self._inflight = 0
        self._peer: Peer | None = None
        self._connecting: SupervisedTask | None = None
        self._is_flush_due = False
        self._is_closed = False

    def put(self, item: T) -> None:
        """Send an item; the API completes it later, or fails it."""
        if self._is_closed or len(self._pending) >= _PENDING_MAX:
            self._api.fail(item, ErrorCode.NETWORK_EXCEPTION)
            return
        self._pending.append(item)
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        """Close the connection and fail all items that have no response."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._peer is not None:
            self._peer.close()
        self._fail_pending()

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_closed or self._connecting is not None or not self._pending:
            return
        if self._peer is None or self._peer.closed:
            self._connecting = self._connector.supervisor.start(
                "broker-link",
                self._connect,
                about=f"{self._endpoint.host}:{self._endpoint.port}",
                policy=Policy.REPORT,
                on_failure=lambda _: self._fail_pending(),
            )
            return
        while self._pending and self._inflight < _REQUESTS_MAX:
            count = min(len(self._pending), _REQUEST_ITEMS_MAX)
            self._send(self._peer, [self._pending.popleft() for _ in range(count)])

    async def _connect(self) -> None:
        endpoint = self._endpoint
        try:
            self._peer = await Peer.connect(
                self._connector.network,
                endpoint.host,
                endpoint.port,
                self._connector.client_id,
                _CONNECT_S_MAX,
            )
        except PeerError as error:
            _logger.info("%s", error)
            self._fail_pending()
        finally:
            self._connecting = None
        self._flush()

    def _send(self, peer: Peer, items: list[T]) -> None:
        self._inflight += 1
        api = self._api
        response = peer.send(api.request(items), api.version, api.response)
        timer = asyncio.get_running_loop().call_later(_RESPONSE_S_MAX, peer.close)
        response.add_done_callback(partial(self._on_response, items, timer))

    def _on_response(
        self, items: list[T], timer: asyncio.TimerHandle, response: asyncio.Future[Message]
    ) -> None:
        timer.cancel()
        self._inflight -= 1
        error = response.exception()
        if error is None:
            self._complete(items, response.result())
        else:
            _logger.info("broker at %s:%d: %s", self._endpoint.host, self._endpoint.port, error)
            for item in items:
                self._api.fail(item, ErrorCode.NETWORK_EXCEPTION)
        self._flush()

    def _complete(self, items: list[T], response: Message) -> None:
        try:
            self._api.complete(items, response)
        except Exception as error:  # noqa: BLE001  # logged, counted, and the items fail
            about = f"{type(response).__name__} from {self._endpoint.host}:{self._endpoint.port}"
            self._connector.failures.note(CallbackKind.LINK, error, about)
            for item in items:
                # Items that are complete by now stay as they are.
                self._api.fail(item, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, deque()
        for item in pending:
            self._api.fail(item, ErrorCode.NETWORK_EXCEPTION)


class PeerLinks(Generic[T]):
    """A link to each broker, for one API. Event loop only."""

    __slots__ = ("_api", "_connector", "_image", "_links")

    def __init__(self, api: PeerApi[T], connector: PeerConnector, image: ClusterImage) -> None:
        self._api = api
        self._connector = connector
        self._image = image
        self._links: dict[int, PeerLink[T]] = {}

    def put(self, broker_id: int, item: T) -> None:
        """Send an item to a broker; fail it if the metadata have no address of that broker."""
        link = self._links.get(broker_id)
        if link is None:
            broker = self._image.brokers.get(broker_id)
            listener = self._connector.listener_name
            endpoint = broker.endpoint(listener) if broker is not None else None
            if endpoint is None:
                self._api.fail(item, ErrorCode.NETWORK_EXCEPTION)
                return
            link = self._links[broker_id] = PeerLink(endpoint, self._api, self._connector)
        link.put(item)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Close the links to brokers that left or restarted."""
        self._image = image
        for broker_id in delta.brokers:
            link = self._links.pop(broker_id, None)
            if link is not None:
                link.close()

    def close(self) -> None:
        """Close all links; items put from now on fail."""
        links, self._links = self._links, {}
        self._image = ClusterImage()
        for link in links.values():
            link.close()
