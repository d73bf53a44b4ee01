"""Ready items by topic, for workers with priorities or rate limits. Pure.

Each topic has a queue and a weight. Among topics that have ready items and whose rate limit allows
a start, the next start goes to the topic with the lowest *pass*, and the pass then grows by
1 / weight. So while both have messages, a topic with weight 10 starts ten messages for each one of
a topic with weight 1, and no topic starves. A topic that was empty continues at the pass of the
others: it does not catch up on starts that it did not need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.policy.rate_limit import RateLimit


class TopicQueue:
    """The ready items of one topic."""

    __slots__ = ("items", "limit", "passed", "step")

    def __init__(self, weight: float, limit: RateLimit | None) -> None:
        self.items: deque[WorkItem] = deque()
        self.limit = limit
        self.step = 1.0 / weight
        self.passed = 0.0


class TopicQueues:
    """All ready items of a worker. `limit` is for all topics together.

    Topics without a weight have weight 1.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        limits: Mapping[str, RateLimit],
        limit: RateLimit | None = None,
    ) -> None:
        self._weights = weights
        self._limits = limits
        self._limit = limit
        self._queues: dict[str, TopicQueue] = {}
        #: The pass of the last start.
        self._passed = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: WorkItem) -> bool:
        queue = self._queues.get(item.origin.topic)
        return queue is not None and item in queue.items

    def append(self, item: WorkItem) -> None:
        """Add an item at the end of its topic's queue."""
        topic = item.origin.topic
        queue = self._queues.get(topic)
        if queue is None:
            queue = TopicQueue(self._weights.get(topic, 1.0), self._limits.get(topic))
            self._queues[topic] = queue
        if not queue.items:
            queue.passed = max(queue.passed, self._passed)
        queue.items.append(item)
        self._count += 1

    def remove(self, item: WorkItem) -> None:
        """Remove an item that starts by other rules."""
        self._queues[item.origin.topic].items.remove(item)
        self._count -= 1

    def take(self, now: float) -> WorkItem | None:
        """Return the next item that may start, or None."""
        if self._limit is not None and not self._limit.has_token(now):
            return None
        ready = [
            queue
            for queue in self._queues.values()
            if queue.items and (queue.limit is None or queue.limit.has_token(now))
        ]
        if not ready:
            return None
        queue = min(ready, key=_passed)
        for limit in (self._limit, queue.limit):
            if limit is not None:
                limit.take()
        self._passed = queue.passed
        queue.passed += queue.step
        self._count -= 1
        return queue.items.popleft()


def _passed(queue: TopicQueue) -> float:
    return queue.passed
