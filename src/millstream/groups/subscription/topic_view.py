"""The topics as a group sees them: what its members may subscribe to at one instant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from millstream.metadata.image import ClusterImage
from millstream.model.topic import TopicId

#: Topics that a pattern never subscribes to, however wide it is. By name they can be.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class AssignableTopic(NamedTuple):
    """As much of a topic as assignors go by. No assignor looks at racks."""

    topic_id: TopicId
    partition_count: int


class TopicView(Protocol):
    """One instant."""

    @property
    def version(self) -> int:
        """Changes whenever any topic does."""
        ...

    def topic(self, name: str) -> AssignableTopic | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]:
        """The topics that patterns are matched against."""
        ...


class ImageTopicView:
    """The view of a cluster's image."""

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
