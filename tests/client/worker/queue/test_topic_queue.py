"""Which topic the next start of a worker goes to."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from millstream.client.record import Partition, Record
from millstream.client.worker.message.header import Origin
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.policy.rate_limit import RateLimit
from millstream.client.worker.queue.topic_queue import TopicQueues


class FakeRecord:
    def __init__(self, offset: int) -> None:
        self.offset, self.raw_key, self.raw_value = offset, b"", b""


def item(topic: str, offset: int = 0) -> WorkItem:
    origin = Origin(topic, 0, offset, None, None, 0, None)
    record = cast("Record", cast("Any", FakeRecord(offset)))
    return WorkItem(Partition(topic, 0), record, origin, None)


def filled(queues: TopicQueues, **counts: int) -> TopicQueues:
    for topic, count in counts.items():
        for offset in range(count):
            queues.append(item(topic, offset))
    return queues


def taken(queues: TopicQueues, count: int, now: float = 0.0) -> list[str]:
    found = (queues.take(now) for _ in range(count))
    return [each.origin.topic for each in found if each is not None]


def test_starts_follow_the_weights_and_no_topic_starves() -> None:
    queues = filled(TopicQueues({"urgent": 10, "bulk": 1}, {}), bulk=1000, urgent=1000, other=1000)
    topics = taken(queues, 240)
    assert Counter(topics) == {"urgent": 200, "bulk": 20, "other": 20}
    # The topics are mixed: no run of starts leaves another topic out.
    assert all({"urgent", "bulk", "other"} == set(topics[at : at + 13]) for at in range(0, 220, 13))


def test_each_topic_keeps_its_order() -> None:
    queues = filled(TopicQueues({"a": 3}, {}), a=50, b=50)
    offsets: dict[str, list[int]] = {"a": [], "b": []}
    while (each := queues.take(0.0)) is not None:
        offsets[each.origin.topic].append(each.offset)
    assert offsets == {"a": list(range(50)), "b": list(range(50))}
    assert len(queues) == 0


def test_a_topic_that_was_empty_does_not_catch_up() -> None:
    queues = filled(TopicQueues({}, {}), busy=1000)
    taken(queues, 500)
    filled(queues, quiet=100)
    assert Counter(taken(queues, 20)) == {"busy": 10, "quiet": 10}


def test_a_limited_topic_leaves_the_others_alone() -> None:
    queues = filled(TopicQueues({}, {"slow": RateLimit("1/s")}), slow=100, fast=100)
    assert Counter(taken(queues, 50)) == {"slow": 1, "fast": 49}
    assert Counter(taken(queues, 10, now=1.0)) == {"slow": 1, "fast": 9}
    taken(queues, 100, now=1.0)
    assert queues.take(1.5) is None
    assert len(queues) == 98


def test_a_limit_for_all_topics() -> None:
    queues = filled(TopicQueues({}, {}, RateLimit("20/s")), a=100, b=100)
    assert len(taken(queues, 50)) == 3
    assert len(taken(queues, 50, now=0.1)) == 2


def test_an_item_can_be_removed() -> None:
    queues = TopicQueues({}, {})
    first, second = item("a", 1), item("a", 2)
    for each in (first, second):
        queues.append(each)
    queues.remove(first)
    assert first not in queues
    assert second in queues
    assert queues.take(0.0) is second
    assert item("other") not in queues
