"""The ConsumerGroupDescribe response for a consumer group."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.consumer_state import ConsumerMember
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.topic import TopicId
from millstream.wire.messages.consumer_group_describe import (
    MEMBER_CLASSIC,
    MEMBER_CONSUMER,
    ConsumerGroupDescribeResponse,
)

_Group = ConsumerGroupDescribeResponse.Group
_Assignment = _Group.Member.Assignment


def describe_consumer_group(group: ConsumerGroup, topics: TopicView) -> _Group:
    """Describe a group. Partitions of deleted topics are left out, because they have no name."""
    state = group.state
    return _Group(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=state.epoch,
        assignment_epoch=state.target_epoch,
        assignor_name=group.assignor_name,
        members=[
            _describe_member(member, state.targets.get(member.member_id, {}), topics)
            for member in state.members.values()
        ],
    )


def _describe_member(
    member: ConsumerMember, target: Mapping[TopicId, Collection[int]], topics: TopicView
) -> _Group.Member:
    metadata, current = member.metadata, member.current
    return _Group.Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.subscribed_topic_names,
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=_assignment(current.assigned, topics),
        target_assignment=_assignment(target, topics),
        member_type=MEMBER_CONSUMER if member.classic is None else MEMBER_CLASSIC,
    )


def _assignment(
    partition_epochs: Mapping[TopicId, Collection[int]], topics: TopicView
) -> _Assignment:
    rows = [
        _Assignment.TopicPartitions(
            topic_id=topic_id, topic_name=name, partitions=sorted(partitions)
        )
        for topic_id, partitions in partition_epochs.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    return _Assignment(topic_partitions=rows)
