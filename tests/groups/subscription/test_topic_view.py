"""The topics of an image that members can subscribe to."""

from __future__ import annotations

from millstream.groups.subscription.topic_view import AssignableTopic, ImageTopicView
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage
from millstream.model.map import Map

A, B = b"a" * 16, b"b" * 16


def test_view_of_an_image() -> None:
    partition = PartitionRecord(replicas=(1,), leader=1, leader_epoch=0, isr=(1,))
    topics = {
        "apples": TopicRecord("apples", A, (partition, partition)),
        "__consumer_offsets": TopicRecord("__consumer_offsets", B, (partition,)),
    }
    names = Map({topic.topic_id: name for name, topic in topics.items()})
    view = ImageTopicView(ClusterImage(revision=7, topics=Map(topics), topic_names=names))
    assert view.version == 7
    assert view.topic("apples") == AssignableTopic(A, 2)
    assert view.topic("__consumer_offsets") == AssignableTopic(B, 1)
    assert view.topic("berries") is None
    assert view.name_of(A) == "apples"
    assert view.name_of(bytes(16)) is None
    # Members can subscribe to internal topics only by name.
    assert list(view.names()) == ["apples"]
