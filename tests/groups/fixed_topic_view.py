"""A `TopicView` of a fixed set of topics, for tests of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.groups.subscription.topic_view import AssignableTopic
from millstream.model.topic import TopicId


class FixedTopicView:
    """A view of the given topics; patterns match all of them."""

    __slots__ = ("_names", "_topics", "version")

    def __init__(self, topics: Mapping[str, AssignableTopic], version: int = 0) -> None:
        self._topics = dict(topics)
        self._names = {topic.topic_id: name for name, topic in topics.items()}
        self.version = version

    def topic(self, name: str) -> AssignableTopic | None:
        return self._topics.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._names.get(topic_id)

    def names(self) -> Iterable[str]:
        return self._topics
