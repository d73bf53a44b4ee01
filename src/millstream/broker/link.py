"""Asking other brokers: what many want of one broker at the same time goes out in few requests.

A `Link` leads to one broker and speaks one API, whose requests carry any number of items (a
`Conversation` makes requests of them and hands out the answers). Items wait for the end of the
loop's turn and go out together. Several requests may be under way; while there are as many as
allowed, further items gather. There is one connection, made when it is first needed, and again when
it was lost.

Everything is bounded: the items that wait, those of one request, the requests under way, and the
time for an answer. An item that can't be delivered, for whichever of these reasons, fails with
NETWORK_EXCEPTION: nobody knows then whether the other broker acted on it. Nothing is tried again
here.

`Links` is a link to each broker, as the metadata say. One that left or came back is another one:
its link ends, and with it all that was under way.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
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

_log = logging.getLogger(__name__)

_CONNECT_S_MAX: Final = 2.0
#: Longer than other brokers wait for their replicas, after which they answer.
_ANSWER_S_MAX: Final = 10.0
_WAITING_MAX: Final = 20_000
_REQUEST_ITEMS_MAX: Final = 1000
_REQUESTS_MAX: Final = 4

T = TypeVar("T")


def known_code(number: int) -> ErrorCode:
    """An error code of an answer; a newer broker may have some that this one has never heard of."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class Conversation(ABC, Generic[T]):
    """One API between brokers, in the one version that they speak."""

    version: ClassVar[int]
    response: ClassVar[type[Message]]

    @abstractmethod
    def request(self, items: Sequence[T]) -> Message: ...

    @abstractmethod
    def answer(self, items: Sequence[T], response: Any) -> None:
        """Hand out the answer to the items of one request."""

    @abstractmethod
    def fail(self, item: T, code: ErrorCode) -> None:
        """Fail an item; without effect on one that has its answer or has failed."""


class Link(Generic[T]):
    """See the module's text. Event loop only."""

    __slots__ = (
        "_client_id",
        "_connecting",
        "_conversation",
        "_endpoint",
        "_failures",
        "_is_closed",
        "_is_flush_due",
        "_network",
        "_peer",
        "_supervisor",
        "_under_way",
        "_waiting",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        conversation: Conversation[T],
        network: Network,
        client_id: str,
        supervisor: Supervisor,
        failures: CallbackFailures,
    ) -> None:
        self._supervisor = supervisor
        self._endpoint = endpoint
        self._failures = failures
        self._conversation = conversation
        self._network = network
        self._client_id = client_id
        self._waiting: deque[T] = deque()
        self._under_way = 0
        self._peer: Peer | None = None
        self._connecting: SupervisedTask | None = None
        self._is_flush_due = False
        self._is_closed = False

    def put(self, item: T) -> None:
        """Have an item sent; the conversation is given its answer."""
        if self._is_closed or len(self._waiting) >= _WAITING_MAX:
            self._conversation.fail(item, ErrorCode.NETWORK_EXCEPTION)
            return
        self._waiting.append(item)
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        """Fail what has no answer."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._peer is not None:
            self._peer.close()
        self._fail_waiting()

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_closed or self._connecting is not None or not self._waiting:
            return
        if self._peer is None or self._peer.closed:
            self._connecting = self._supervisor.start(
                "broker-link",
                self._connect,
                about=f"{self._endpoint.host}:{self._endpoint.port}",
                policy=Policy.REPORT,
                on_failure=lambda _: self._fail_waiting(),
            )
            return
        while self._waiting and self._under_way < _REQUESTS_MAX:
            count = min(len(self._waiting), _REQUEST_ITEMS_MAX)
            self._send(self._peer, [self._waiting.popleft() for _ in range(count)])

    async def _connect(self) -> None:
        endpoint = self._endpoint
        try:
            self._peer = await Peer.connect(
                self._network, endpoint.host, endpoint.port, self._client_id, _CONNECT_S_MAX
            )
        except PeerError as error:
            _log.info("%s", error)
            self._fail_waiting()
        finally:
            self._connecting = None
        self._flush()

    def _send(self, peer: Peer, items: list[T]) -> None:
        self._under_way += 1
        conversation = self._conversation
        answer = peer.send(conversation.request(items), conversation.version, conversation.response)
        timer = asyncio.get_running_loop().call_later(_ANSWER_S_MAX, peer.close)
        answer.add_done_callback(partial(self._answered, items, timer))

    def _answered(
        self, items: list[T], timer: asyncio.TimerHandle, answer: asyncio.Future[Message]
    ) -> None:
        timer.cancel()
        self._under_way -= 1
        error = answer.exception()
        if error is None:
            self._hand_out(items, answer.result())
        else:
            _log.info("broker at %s:%d: %s", self._endpoint.host, self._endpoint.port, error)
            for item in items:
                self._conversation.fail(item, ErrorCode.NETWORK_EXCEPTION)
        self._flush()

    def _hand_out(self, items: list[T], response: Message) -> None:
        try:
            self._conversation.answer(items, response)
        except Exception as error:  # noqa: BLE001  # logged, counted, and the items fail
            about = f"{type(response).__name__} of {self._endpoint.host}:{self._endpoint.port}"
            self._failures.note(CallbackKind.LINK, error, about)
            for item in items:
                # Without effect on items that have got their answer.
                self._conversation.fail(item, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            self._conversation.fail(item, ErrorCode.NETWORK_EXCEPTION)


class Links(Generic[T]):
    """See the module's text. Event loop only."""

    __slots__ = (
        "_client_id",
        "_conversation",
        "_failures",
        "_image",
        "_links",
        "_listener",
        "_network",
        "_supervisor",
    )

    def __init__(
        self,
        conversation: Conversation[T],
        network: Network,
        listener_name: str,
        client_id: str,
        image: ClusterImage,
        supervisor: Supervisor,
        failures: CallbackFailures,
    ) -> None:
        self._supervisor = supervisor
        self._failures = failures
        self._conversation = conversation
        self._network = network
        #: The listener through which brokers reach each other.
        self._listener = listener_name
        self._client_id = client_id
        self._image = image
        self._links: dict[int, Link[T]] = {}

    def put(self, broker_id: int, item: T) -> None:
        link = self._links.get(broker_id)
        if link is None:
            broker = self._image.brokers.get(broker_id)
            endpoint = broker.endpoint(self._listener) if broker is not None else None
            if endpoint is None:
                self._conversation.fail(item, ErrorCode.NETWORK_EXCEPTION)
                return
            link = Link(
                endpoint,
                self._conversation,
                self._network,
                self._client_id,
                self._supervisor,
                self._failures,
            )
            self._links[broker_id] = link
        link.put(item)

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        self._image = image
        for broker_id in delta.brokers:
            link = self._links.pop(broker_id, None)
            if link is not None:
                link.close()

    def close(self) -> None:
        links, self._links = self._links, {}
        self._image = ClusterImage()
        for link in links.values():
            link.close()
