"""Requests for the offsets of partitions: the earliest, the latest, or the first after a time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Literal, TypeAlias

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from millstream.client.admin.handle import AdminHandle
from millstream.client.admin.result import Outcome
from millstream.client.error import UsageError
from millstream.client.record import Partition

#: The earliest or latest offset, or that of the first record at or after a time. A number is
#: milliseconds since 1970.
OffsetAt: TypeAlias = Literal["earliest", "latest", "max_timestamp"] | dt.datetime | int


def list_offsets(
    handle: AdminHandle,
    wanted: Mapping[Partition, OffsetAt],
    timeout: float,
    *,
    read_committed: bool,
) -> dict[Partition, Outcome[int]]:
    rows = {TopicPartition(*partition): _spec(at) for partition, at in wanted.items()}
    if not rows:
        return {}
    isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    futures = handle.client.list_offsets(rows, isolation_level=isolation, request_timeout=timeout)
    return handle.outcomes(
        {Partition(row.topic, row.partition): future for row, future in futures.items()},
        lambda each: f"Listing the offsets of {each.topic}-{each.partition}",
        timeout,
        lambda found: int(found.offset),
    )


def _spec(at: OffsetAt) -> OffsetSpec:
    spec: OffsetSpec
    if at == "earliest":
        spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    elif at == "latest":
        spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    elif at == "max_timestamp":
        spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    else:
        spec = OffsetSpec.for_timestamp(milliseconds_of(at))
    return spec


def milliseconds_of(time: dt.datetime | int | str) -> int:
    """Return a time as milliseconds since 1970."""
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: pass datetime(..., tzinfo=timezone.utc).")
        return int(time.timestamp() * 1000)
    if isinstance(time, bool) or not isinstance(time, int) or time < 0:
        raise UsageError(
            f"{time!r} is not a position: use 'earliest', 'latest', 'max_timestamp', a datetime, or"
            " milliseconds since 1970."
        )
    return time
