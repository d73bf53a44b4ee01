"""Plans new offsets of a group: to the earliest or latest offset, an offset, a time, or shifted.

A new offset always lies within the partition or at its end. A requested offset outside becomes the
nearest one, and the plan keeps both. `target_of` and `plan_changes` are pure.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from millstream.client.admin.group_request import (
    active_group,
    describe_groups,
    is_missing_group,
    list_group_offsets,
)
from millstream.client.admin.group_result import GroupDescription, OffsetChange
from millstream.client.admin.handle import AdminHandle, single
from millstream.client.admin.offset_request import OffsetAt, list_offsets, milliseconds_of
from millstream.client.admin.topic_request import partitions_of
from millstream.client.error import BrokerError, UsageError
from millstream.client.record import Partition

#: A position of all partitions, or an offset for each.
ResetTo: TypeAlias = Literal["earliest", "latest"] | int | dt.datetime | Mapping[Partition, int]


class ResetTarget(NamedTuple):
    """The requested position. Exactly one field is set."""

    end: Literal["earliest", "latest"] | None = None
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None
    offsets: Mapping[Partition, int] | None = None


def target_of(
    to: ResetTo | None, duration: dt.timedelta | float | None, shift_by: int | None
) -> ResetTarget:
    """Return the target of the call's arguments. Raises UsageError."""
    if (to is not None) + (duration is not None) + (shift_by is not None) != 1:
        raise UsageError("Pass exactly one of to=..., duration=... and shift_by=...")
    if shift_by is not None:
        return ResetTarget(shift=shift_by)
    if duration is not None:
        seconds = duration.total_seconds() if isinstance(duration, dt.timedelta) else duration
        if seconds < 0:
            raise UsageError(f"duration={duration!r}: pass how far to go back, not a negative one.")
        return ResetTarget(time_ms=max(0, int((time.time() - seconds) * 1000)))
    if to in ("earliest", "latest"):
        return ResetTarget(end="earliest" if to == "earliest" else "latest")
    if isinstance(to, dt.datetime):
        return ResetTarget(time_ms=milliseconds_of(to))
    if isinstance(to, Mapping):
        return ResetTarget(offsets=to)
    if isinstance(to, int) and not isinstance(to, bool) and to >= 0:
        return ResetTarget(offset=to)
    raise UsageError(
        f"to={to!r}: pass 'earliest', 'latest', an offset, a datetime, or an offset for each"
        " partition."
    )


def plan(
    handle: AdminHandle,
    group: str,
    topics: Iterable[str | Partition] | None,
    target: ResetTarget,
    timeout: float,
) -> list[OffsetChange]:
    """Return the change of each partition, in order, unchanged ones included.

    Raises NON_EMPTY_GROUP if the group has members, UNKNOWN_TOPIC_OR_PART for a partition that does
    not exist, and UsageError for a shift of a partition without a committed offset."""
    _check_inactive(handle, group, timeout)
    committed = list_group_offsets(handle, group, timeout)
    if topics is None and target.offsets is not None:
        topics = target.offsets
    partitions = sorted(committed) if topics is None else _expand(handle, topics, timeout)
    starts = _offsets_at(handle, partitions, "earliest", timeout)
    ends = _offsets_at(handle, partitions, "latest", timeout)
    by_time = (
        {} if target.time_ms is None else _offsets_at(handle, partitions, target.time_ms, timeout)
    )
    ranges = {each: (starts[each], ends[each]) for each in partitions}
    return plan_changes(target, ranges, committed, by_time)


def plan_changes(
    target: ResetTarget,
    ranges: Mapping[Partition, tuple[int, int]],
    committed: Mapping[Partition, int],
    by_time: Mapping[Partition, int],
) -> list[OffsetChange]:
    """Return the change of each partition in `ranges`, which are `[start, end)`.

    `by_time` has the first offset at or after the requested time, or -1."""
    changes = []
    for partition, (start, end) in sorted(ranges.items()):
        current = committed.get(partition)
        requested = _requested(target, partition, (start, end), current, by_time)
        changes.append(
            OffsetChange(
                *partition,
                None if current is None else int(current),
                requested,
                min(max(requested, start), end),
            )
        )
    return changes


def _requested(
    target: ResetTarget,
    partition: Partition,
    available: tuple[int, int],
    current: int | None,
    by_time: Mapping[Partition, int],
) -> int:
    name = f"{partition.topic}-{partition.partition}"
    if target.end is not None:
        return available[0] if target.end == "earliest" else available[1]
    if target.offset is not None:
        return target.offset
    if target.time_ms is not None:
        found = by_time[partition]
        return found if found >= 0 else available[1]
    if target.shift is not None:
        if current is None:
            raise UsageError(
                f"{name} has no committed offset to shift: leave it out, or reset it to an offset."
            )
        return int(current) + target.shift
    assert target.offsets is not None
    if partition not in target.offsets:
        raise UsageError(f"to=... has no offset for {name}: add it, or leave the partition out.")
    return target.offsets[partition]


def _check_inactive(handle: AdminHandle, group: str, timeout: float) -> None:
    """Raise if the group has members. A group that does not exist is created by its offsets."""
    found = describe_groups(handle, [group], timeout)[group]
    if isinstance(found, GroupDescription):
        if found.is_active:
            raise active_group(group, "Resetting offsets")
    elif not is_missing_group(found):
        raise found


def _expand(
    handle: AdminHandle, topics: Iterable[str | Partition], timeout: float
) -> list[Partition]:
    """Return the named partitions and all partitions of the named topics."""
    if isinstance(topics, str):
        raise UsageError(f"topics={topics!r}: pass a list of names or partitions.")
    wanted = list(topics)
    names = [each if isinstance(each, str) else each[0] for each in wanted]
    existing = partitions_of(handle, names, timeout)
    found: set[Partition] = set()
    for each in wanted:
        if isinstance(each, str):
            found.update(existing[each])
            continue
        partition = Partition(*each)
        if partition not in existing[partition.topic]:
            raise _missing_partition(partition, len(existing[partition.topic]))
        found.add(partition)
    return sorted(found)


def _missing_partition(partition: Partition, count: int) -> BrokerError:
    noun = "partition" if count == 1 else "partitions"
    return BrokerError(
        f"Topic {partition.topic!r} has no partition {partition.partition}: it has {count} {noun},"
        " numbered from 0 (UNKNOWN_TOPIC_OR_PART).",
        "UNKNOWN_TOPIC_OR_PART",
        3,
    )


def _offsets_at(
    handle: AdminHandle, partitions: Iterable[Partition], at: OffsetAt, timeout: float
) -> dict[Partition, int]:
    wanted = dict.fromkeys(partitions, at)
    found = list_offsets(handle, wanted, timeout, read_committed=False)
    return {partition: single(offset) for partition, offset in found.items()}
