"""The lag of all groups in records, for `millstream doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.cli.support.connection import Connection

if TYPE_CHECKING:
    from millstream.client.admin import Admin
    from millstream.client.admin.offset_request import OffsetAt
    from millstream.client.record import OffsetAndMetadata, Partition

#: A request asks for the offsets of one group. This many requests are in progress at once.
_REQUESTS_MAX: Final = 16


class UnreadRecords(NamedTuple):
    """How far a group is behind."""

    group: str
    records: int
    #: Whether retention deleted records that the group has not read.
    has_lost_records: bool


def group_lags(connection: Connection, admin: Admin) -> list[UnreadRecords]:
    """Return the lag of each group with committed offsets. Raises CommandError.

    Partitions without a leader do not count: their end is unknown."""
    with connection.failing():
        committed = _committed(admin)
        partitions = sorted({each for offsets in committed.values() for each in offsets})
        starts = _offsets(admin, partitions, "earliest")
        ends = _offsets(admin, partitions, "latest")
    found = []
    for group, offsets in sorted(committed.items()):
        known = {key: each for key, each in offsets.items() if key in starts and key in ends}
        records = sum(max(0, ends[key] - max(each, starts[key])) for key, each in known.items())
        is_lost = any(each < starts[key] for key, each in known.items())
        found.append(UnreadRecords(group, records, is_lost))
    return found


def _committed(admin: Admin) -> dict[str, dict[Partition, OffsetAndMetadata]]:
    """Return the committed offsets of the groups on brokers that respond."""
    from millstream.client.admin import IncompleteListing

    try:
        listed = admin.list_groups()
    except IncompleteListing as error:
        # The check of brokers reports the broker that does not respond.
        listed = error.groups
    names = [each.group_id for each in listed]
    with ThreadPoolExecutor(_REQUESTS_MAX, "doctor-groups") as threads:
        return dict(zip(names, threads.map(admin.list_group_offsets, names), strict=True))


def _offsets(admin: Admin, partitions: Iterable[Partition], at: OffsetAt) -> dict[Partition, int]:
    """Return an offset of each partition, without those whose leader does not respond."""
    found = admin.list_offsets(dict.fromkeys(partitions, at))
    # The check of partitions reports a missing leader.
    return {each: offset for each, offset in found.items() if isinstance(offset, int)}
