"""The lag of all groups in records, for `millstream doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from millstream.cli.support.connection import Connection

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, OffsetSpec

Key: TypeAlias = tuple[str, int]


class GroupLag(NamedTuple):
    """How far a group is behind."""

    group: str
    records: int
    #: Whether retention deleted records that the group has not read.
    has_lost_records: bool


def group_lags(connection: Connection, admin: AdminClient) -> list[GroupLag]:
    """Return the lag of each group with committed offsets. Raises CommandError.

    Partitions without a leader do not count: their end is unknown."""
    from confluent_kafka.admin import OffsetSpec

    committed = _committed(connection, admin)
    keys = sorted({key for offsets in committed.values() for key in offsets})
    starts = _offsets(connection, admin, keys, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = _offsets(connection, admin, keys, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    found = []
    for group, offsets in sorted(committed.items()):
        known = {key: each for key, each in offsets.items() if key in starts and key in ends}
        records = sum(max(0, ends[key] - max(each, starts[key])) for key, each in known.items())
        is_lost = any(each < starts[key] for key, each in known.items())
        found.append(GroupLag(group, records, is_lost))
    return found


def _committed(connection: Connection, admin: AdminClient) -> dict[str, dict[Key, int]]:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    timeout_s = connection.timeout_s
    try:
        listed = admin.list_consumer_groups(request_timeout=timeout_s).result()
        # librdkafka takes one group per call; all calls are in progress at the same time.
        futures = {
            row.group_id: admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(row.group_id)], request_timeout=timeout_s
            )[row.group_id]
            for row in listed.valid
        }
        return {
            group: {
                (row.topic, row.partition): row.offset
                for row in future.result().topic_partitions
                if row.offset >= 0
            }
            for group, future in futures.items()
        }
    except KafkaException as exception:
        raise connection.failure(exception, "cannot read the offsets of groups") from None


def _offsets(
    connection: Connection, admin: AdminClient, keys: list[Key], spec: OffsetSpec
) -> dict[Key, int]:
    """Return an offset of each partition, without those whose leader does not respond."""
    from confluent_kafka import KafkaException, TopicPartition

    if not keys:
        return {}
    futures = admin.list_offsets(
        {TopicPartition(*key): spec for key in keys}, request_timeout=connection.timeout_s
    )
    found: dict[Key, int] = {}
    for partition, future in futures.items():
        try:
            found[partition.topic, partition.partition] = future.result().offset
        except KafkaException:
            # The check of partitions reports a missing leader.
            continue
    return found
