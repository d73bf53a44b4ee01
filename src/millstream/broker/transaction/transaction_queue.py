"""The order of a transactional producer's requests while one of them waits for its coordinator.

A client sends several Produce requests without waiting, and a batch that is appended before an
earlier one is out of sequence. Kafka reads nothing from a connection while a request waits. Here a
connection is shared by all that a client does, so requests are handled as they arrive, and only
those of one transaction keep their order: per transactional id, producer id and epoch.

A queue exists from the moment when a request has to wait until no request waits any more. Every
later request of the producer joins it, also one whose partitions are all in the transaction
already. The coordinator is asked about the head only. When it has decided, the head is appended
and the next request is looked at.

    asked     the head: the coordinator has not decided yet
    waiting   behind the head, with copies of its batches
    dropped   its client has disconnected: it is skipped when its turn comes

What waits is bounded by `queued.max.request.bytes`; a request beyond that is rejected, and its
client retries it. Event loop only.
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
    """One Produce request. Its methods do not raise."""

    #: Bytes of its batches.
    size: int

    def ask(self, decided: Callable[[], None]) -> None:
        """Have the coordinator admit the partitions that are new to the transaction.

        `decided` is called once it has decided, perhaps before this returns."""
        ...

    def keep(self, leave: Callable[[], None]) -> None:
        """Copy the batches, as the receive buffer is used again. `leave` is to be called when the
        client disconnects."""
        ...

    def finish(self) -> None:
        """Append the batches and complete the response. Does nothing once it was dropped."""
        ...


class TransactionQueues:
    """All queues of a broker."""

    __slots__ = ("_queues", "waiting_bytes", "waiting_bytes_max")

    def __init__(self, waiting_bytes_max: int) -> None:
        self._queues: dict[QueueKey, _Queue] = {}
        #: Of requests that wait; at most `waiting_bytes_max`, or one request.
        self.waiting_bytes = 0
        self.waiting_bytes_max = waiting_bytes_max

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, key: QueueKey) -> bool:
        return key in self._queues

    def has_room(self, size: int) -> bool:
        """Whether a request of `size` bytes may wait. The first one may, whatever its size."""
        return not self.waiting_bytes or self.waiting_bytes + size <= self.waiting_bytes_max

    def may_append(self, key: QueueKey, request: TransactionalRequest) -> bool:
        """Whether a request may be appended now. If not, it was queued: `finish` is called later.

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
    __slots__ = ("_is_asking", "_is_decided", "_key", "_queues", "_requests")

    def __init__(self, queues: TransactionQueues, key: QueueKey) -> None:
        self._queues = queues
        self._key = key
        #: The head is the one that the coordinator was asked about.
        self._requests: deque[TransactionalRequest] = deque()
        #: Whether `ask` of the head has not returned yet.
        self._is_asking = False
        self._is_decided = False

    def is_decided_at_once(self, request: TransactionalRequest) -> bool:
        """Ask the coordinator; if it decides later, that moves the queue on."""
        self._is_asking, self._is_decided = True, False
        request.ask(self._decided)
        self._is_asking = False
        return self._is_decided

    def add(self, request: TransactionalRequest) -> None:
        self._requests.append(request)
        self._queues.waiting_bytes += request.size
        request.keep(lambda: self._leave(request))

    def _leave(self, request: TransactionalRequest) -> None:
        # The head stays until the coordinator has decided: its place is taken by that.
        if request is not self._requests[0]:
            self._requests.remove(request)
            self._queues.waiting_bytes -= request.size

    def _decided(self) -> None:
        """The coordinator has decided about the head."""
        if self._is_asking:
            self._is_decided = True
            return
        self._finish_head()
        # Meanwhile the client may have sent more: they have joined.
        while self._requests and self.is_decided_at_once(self._requests[0]):
            self._finish_head()
        if not self._requests:
            self._queues.remove(self._key)

    def _finish_head(self) -> None:
        head = self._requests[0]
        head.finish()
        self._requests.popleft()
        self._queues.waiting_bytes -= head.size
