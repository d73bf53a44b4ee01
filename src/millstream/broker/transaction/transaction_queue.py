"""The order of a transactional producer's requests while one of them waits for its coordinator.

A client sends several Produce requests without waiting, and a batch that is appended before an
earlier one is out of sequence. Kafka reads nothing from a connection while a request waits. Here
all requests of a client share a connection, so requests are handled as they arrive, and only the
requests of one transaction keep their order: per transactional id, producer id and epoch.

A queue exists from the moment when a request has to wait until no request waits any more. Every
later request of the producer joins the queue, even if the transaction has all of its partitions.
Admission is requested for the head only. When the coordinator has decided, the head is appended and
the next request becomes the head.

    requested  the head: the coordinator has not decided yet
    waiting    behind the head, with copies of its batches
    dropped    the client has disconnected: the request is skipped when its turn comes

Waiting requests are bounded by `queued.max.request.bytes`. A request beyond that is rejected, and
its client retries it. Event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from millstream.coordination.effects import ProducerIdAndEpoch


class QueueKey(NamedTuple):
    """A transactional producer in one epoch."""

    transactional_id: str
    producer: ProducerIdAndEpoch


class TransactionalRequest(Protocol):
    """One Produce request of a transactional producer. Its methods do not raise."""

    #: Bytes of its batches.
    size: int

    def request_admission(self, decided: Callable[[], None]) -> None:
        """Request the admission of the partitions that are new to the transaction.

        `decided` is called once the coordinator has decided, perhaps before this returns."""
        ...

    def copy_batches(self, leave: Callable[[], None]) -> None:
        """Copy the batches, because the receive buffer is reused. The request calls `leave` when
        the client disconnects."""
        ...

    def finish(self) -> None:
        """Append the batches and complete the response. Does nothing after `leave`."""
        ...


class TransactionQueues:
    """All queues of a broker."""

    __slots__ = ("_queues", "waiting_bytes", "waiting_bytes_max")

    def __init__(self, waiting_bytes_max: int) -> None:
        self._queues: dict[QueueKey, _Queue] = {}
        #: Bytes of waiting requests; at most `waiting_bytes_max`, or one request.
        self.waiting_bytes = 0
        self.waiting_bytes_max = waiting_bytes_max

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, key: QueueKey) -> bool:
        return key in self._queues

    def has_room(self, size: int) -> bool:
        """Return whether a request of `size` bytes may wait. The first one may, at any size."""
        return not self.waiting_bytes or self.waiting_bytes + size <= self.waiting_bytes_max

    def may_append(self, key: QueueKey, request: TransactionalRequest) -> bool:
        """Return whether a request may be appended now. If not, it is queued: `finish` is called
        later.

        The caller has checked `has_room`.
        """
        queue = self._queues.get(key)
        if queue is None:
            queue = _Queue(self, key)
            if queue.is_decided_at_once(request):
                return True
            self._queues[key] = queue
        queue.add(request)
        return False

    def remove(self, key: QueueKey) -> None:
        del self._queues[key]


class _Queue:
    __slots__ = ("_is_decided", "_is_requesting", "_key", "_queues", "_requests")

    def __init__(self, queues: TransactionQueues, key: QueueKey) -> None:
        self._queues = queues
        self._key = key
        #: Admission was requested for the head.
        self._requests: deque[TransactionalRequest] = deque()
        #: Whether `request_admission` of the head has not returned yet.
        self._is_requesting = False
        self._is_decided = False

    def is_decided_at_once(self, request: TransactionalRequest) -> bool:
        """Request admission; return whether it was decided at once. If not, `_decided` follows."""
        self._is_requesting, self._is_decided = True, False
        request.request_admission(self._decided)
        self._is_requesting = False
        return self._is_decided

    def add(self, request: TransactionalRequest) -> None:
        self._requests.append(request)
        self._queues.waiting_bytes += request.size
        request.copy_batches(lambda: self._leave(request))

    def _leave(self, request: TransactionalRequest) -> None:
        # The head stays until the coordinator has decided: `_decided` removes it.
        if request is not self._requests[0]:
            self._requests.remove(request)
            self._queues.waiting_bytes -= request.size

    def _decided(self) -> None:
        """Append the head, and every request behind it that needs no further decision."""
        if self._is_requesting:
            self._is_decided = True
            return
        self._finish_head()
        # The client may have sent further requests meanwhile, which are queued.
        while self._requests and self.is_decided_at_once(self._requests[0]):
            self._finish_head()
        if not self._requests:
            self._queues.remove(self._key)

    def _finish_head(self) -> None:
        head = self._requests[0]
        head.finish()
        self._requests.popleft()
        self._queues.waiting_bytes -= head.size
