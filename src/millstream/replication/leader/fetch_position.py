"""A follower's position in one partition: whether the leader accepts it, and what it reads.

Pure. The leader handles a position in this order, because each step relies on the one before:

1. `check_follower`: this broker leads in the follower's leader epoch, and the follower is a
   replica. Otherwise the position says nothing about this leader's log.
2. `divergence.follower_divergence`: the follower's log is a prefix of this log. If it diverges, the
   response says where, and the follower's position is not used.
3. `isr_change` records the position: the follower has every record below it, and the high
   watermark may advance.
4. `read`: records from the position on, committed or not.
"""

from __future__ import annotations

from millstream.log.reading.slice import EMPTY_SLICE, LogSlice
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_EPOCH
from millstream.replication.partition import Partition
from millstream.wire.messages.fetch import FetchRequest


class FetchPosition:
    """The position that a follower sent for one partition."""

    __slots__ = (
        "current_leader_epoch",
        "is_new",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "offset",
    )

    def __init__(self, wanted: FetchRequest.Topic.Partition) -> None:
        self.update(wanted)

    def update(self, wanted: FetchRequest.Topic.Partition) -> None:
        self.offset = wanted.fetch_offset
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset
        self.max_bytes = wanted.partition_max_bytes
        #: Whether the leader has not recorded this position yet.
        self.is_new = True


def check_follower(partition: Partition, broker_id: int, position: FetchPosition) -> None:
    """Raise unless this broker leads in the follower's epoch and the follower is a replica."""
    if position.current_leader_epoch == NO_EPOCH:
        raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, "a follower must send its leader epoch")
    partition.check_leader(position.current_leader_epoch)
    leadership = partition.leadership
    if leadership is None or broker_id not in leadership.followers:
        # The follower has newer or older metadata than this broker.
        raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} is not a replica")


def read(
    partition: Partition, position: FetchPosition, bytes_max: int, at_least_one: bool
) -> LogSlice:
    if position.offset == partition.log.log_end_offset:
        return EMPTY_SLICE
    return partition.read_for_follower(
        position.offset, min(position.max_bytes, bytes_max), at_least_one=at_least_one
    )
