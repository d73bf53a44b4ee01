"""Reads the lag of a group: its committed offsets against the ends of the partitions.

Lag is a partition's end offset minus the committed offset. Compaction and transactions leave gaps
between offsets, so lag is an upper bound, and 0 at the end. Seconds behind are the age of the first
unread record. Headroom is the time until `retention.ms` may delete that record. A client cannot
predict deletion by `retention.bytes`. The lag of a partition whose leader does not respond is
unknown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from millstream.cli.group.unread import FirstUnread, UnreadReader
from millstream.cli.support.connection import Connection
from millstream.cli.support.position import Range
from millstream.cli.support.terminal import note
from millstream.cli.support.topic_config import Retention, retention_of, topic_configs

if TYPE_CHECKING:
    from millstream.client.admin import Admin, GroupMember
    from millstream.client.record import Partition

UNLIMITED: Final = math.inf


class LagReader:
    """Reads groups with one admin client."""

    __slots__ = ("_admin", "_connection", "_unread")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Admin = connection.open_admin()
        self._unread = UnreadReader(connection)

    def close(self) -> None:
        self._admin.close()

    def describe(self, group: str) -> dict[str, Any]:
        """Return the state, the lag and the partitions of a group."""
        with self._connection.failing(group=group):
            return self._describe(group)

    def _describe(self, group: str) -> dict[str, Any]:
        found = self._admin.describe_group(group)
        committed = {
            each: int(offset) for each, offset in self._admin.list_group_offsets(group).items()
        }
        owners = {each: member for member in found.members for each in member.assignment}
        partitions, retentions = self._rows(committed, owners)
        return {
            "group": group,
            "state": str(found.state),
            "type": str(found.type),
            "assignor": found.assignor,
            "coordinator": found.coordinator.node_id if found.coordinator else None,
            "members": len(found.members),
            "lag": sum(row["lag"] or 0 for row in partitions),
            "lag_seconds": max(_known(partitions, "lag_seconds"), default=None),
            "headroom_seconds": min(_known(partitions, "headroom_seconds"), default=None),
            "unknown_partitions": sum(
                row["committed_offset"] is not None and row["lag"] is None for row in partitions
            ),
            "partitions": partitions,
            "limited_by_size": sorted(
                topic for topic, retention in retentions.items() if retention.size_bytes is not None
            ),
        }

    def _rows(
        self, committed: Mapping[Partition, int], owners: Mapping[Partition, GroupMember]
    ) -> tuple[list[dict[str, Any]], dict[str, Retention]]:
        """Return a row for each partition, and the retention of topics that are not read."""
        keys = sorted(committed.keys() | owners.keys())
        ranges = self._ranges(keys)
        behind = _behind(committed, ranges)
        firsts = self._unread.first_unread(behind)
        retentions = self._retentions({each.topic for each in behind})
        rows = []
        for key in keys:
            owner = owners.get(key)
            rows.append(
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "committed_offset": committed.get(key),
                    "end_offset": ranges[key].end if key in ranges else None,
                    **lag_of(key, committed, ranges, firsts, retentions),
                    "member_id": owner.member_id if owner else None,
                    "client_id": owner.client_id if owner else None,
                    "host": owner.host if owner else None,
                }
            )
        return rows, retentions

    def _ranges(self, partitions: Iterable[Partition]) -> dict[Partition, Range]:
        """Return the offsets of each partition whose leader responds."""
        asked = list(partitions)
        starts = self._admin.list_offsets(dict.fromkeys(asked, "earliest"))
        ends = self._admin.list_offsets(dict.fromkeys(asked, "latest"))
        found = {}
        for each in asked:
            start, end = starts[each], ends[each]
            if isinstance(start, int) and isinstance(end, int):
                found[each] = Range(start, end)
        return found

    def _retentions(self, topics: Iterable[str]) -> dict[str, Retention]:
        """Return the retention of each topic. Topics that cannot be described are left out, with a
        note."""
        found = topic_configs(
            self._connection, self._admin, topics, lambda failure: note(str(failure))
        )
        return {topic: retention_of(configs) for topic, configs in found.items()}


def _behind(
    committed: Mapping[Partition, int], ranges: Mapping[Partition, Range]
) -> dict[Partition, int]:
    """Return the first unread offset of each partition that is not read to its end."""
    starts = {
        key: max(offset, ranges[key].start) for key, offset in committed.items() if key in ranges
    }
    return {key: offset for key, offset in starts.items() if offset < ranges[key].end}


def lag_of(
    key: Partition,
    committed: Mapping[Partition, int],
    ranges: Mapping[Partition, Range],
    firsts: Mapping[Partition, FirstUnread],
    retentions: Mapping[str, Retention],
) -> dict[str, Any]:
    """Return the lag in records and seconds, and the headroom; None where unknown."""
    if key not in committed or key not in ranges:
        return {"lag": None, "lag_seconds": None, "headroom_seconds": None}
    first = firsts.get(key)
    if first is None or first.is_nothing:
        return {"lag": 0, "lag_seconds": 0.0, "headroom_seconds": UNLIMITED}
    start, end = ranges[key]
    seconds = None
    if first.timestamp_ms is not None:
        seconds = max(time.time() - first.timestamp_ms / 1000, 0)
    is_deleting = committed[key] < start
    return {
        "lag": end - max(committed[key], start),
        "lag_seconds": seconds,
        "headroom_seconds": 0.0 if is_deleting else _headroom(seconds, retentions.get(key[0])),
    }


def _headroom(age_seconds: float | None, retention: Retention | None) -> float | None:
    if retention is None:
        return None
    if retention.ms is None:
        return UNLIMITED
    return None if age_seconds is None else max(retention.ms / 1000 - age_seconds, 0.0)


def _known(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]
