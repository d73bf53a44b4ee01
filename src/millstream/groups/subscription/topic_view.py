"""The topics that members of a group can subscribe to, at one metadata version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from millstream.metadata.image import ClusterImage
from millstream.model.topic import TopicId

#: Topics that no pattern matches. Members can subscribe to them by name.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class AssignableTopic(NamedTuple):
    """The properties of a topic that assignors use. No assignor uses racks."""

    topic_id: TopicId
    partition_count: int


class TopicView(Protocol):
    """The topics at one metadata version."""

    @property
    def version(self) -> int:
        """The metadata version: it changes whenever a topic changes."""
        ...

    def topic(self, name: str) -> AssignableTopic | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]:
        """Return the topics that patterns can match."""
        ...


class ImageTopicView:
    """The topics of a cluster image."""

    __slots__ = ("_image",)

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.revision

    def topic(self, name: str) -> AssignableTopic | None:
        found = self._image.topics.get(name)
        return None if found is None else AssignableTopic(found.topic_id, len(found.partitions))

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._image.topic_names.get(topic_id)

    def names(self) -> Iterable[str]:
        return (name for name in self._image.topics if name not in _INTERNAL)


class VisibleTopics:
    """A view in which patterns match only some of the topics."""

    __slots__ = ("_is_visible", "_topics")

    def __init__(self, topics: TopicView, is_visible: Callable[[str], bool]) -> None:
        self._topics = topics
        self._is_visible = is_visible

    @property
    def version(self) -> int:
        return self._topics.version

    def topic(self, name: str) -> AssignableTopic | None:
        return self._topics.topic(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._topics.name_of(topic_id)

    def names(self) -> Iterable[str]:
        return filter(self._is_visible, self._topics.names())
