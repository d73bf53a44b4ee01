"""A leader's answer to a follower about one partition: who may fetch, what a fetch proves, what it
gets. No async, no sockets.

In this order, because each step relies on the one before:
1. Is this broker the leader in the epoch that the follower believes in, and is the follower a
   replica? If not, the follower's log says nothing about this leader's.
2. Does the follower's log end inside of ours, in the epoch in which it says so? If not, it is told
   where the logs part, and its position counts for nothing.
3. Its position counts: it has everything below, and the high watermark may move. That is for
   `isr_change` to note.
4. Records from there on, committed or not.
"""

from __future__ import annotations

from millstream.log.log import PartitionLog
from millstream.log.reading.slice import EMPTY_SLICE, LogSlice
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_EPOCH
from millstream.replication.follower.truncation import EpochEnd
from millstream.replication.partition import Partition
from millstream.wire.messages.fetch import FetchRequest


class FetchPosition:
    """Where a follower is in one partition, in its own words."""

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
        #: Whether the leader has not taken note of it yet.
        self.is_new = True


def check_follower(partition: Partition, broker_id: int, position: FetchPosition) -> None:
    """Raise unless this broker leads in the follower's epoch and the follower is a replica."""
    if position.current_leader_epoch == NO_EPOCH:
        raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, "a follower must tell its leader epoch")
    partition.check_leader(position.current_leader_epoch)
    leadership = partition.leadership
    if leadership is None or broker_id not in leadership.followers:
        # It knows of an assignment that has not reached this broker yet, or that is over.
        raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{broker_id} is no replica here")


def epoch_divergence(log: PartitionLog, last_fetched_epoch: int, offset: int) -> EpochEnd | None:
    """Return the end of the last common epoch if the log of a reader at `offset` diverges from
    `log`; None if it does not diverge.

    `last_fetched_epoch` is the epoch of the reader's last record. The returned epoch is NO_EPOCH if
    all epochs of `log` are later."""
    epoch, end_offset = log.epoch_end_offset(last_fetched_epoch)
    if epoch == last_fetched_epoch and end_offset >= offset:
        return None
    return EpochEnd(epoch, end_offset)


def divergence(partition: Partition, position: FetchPosition) -> EpochEnd | None:
    """Where the follower's log parts from the leader's before its end; None if it does not.

    OFFSET_OUT_OF_RANGE where the leader's log begins after the follower's end."""
    log = partition.log
    if position.offset < log.log_start_offset:
        raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if position.last_fetched_epoch == NO_EPOCH:
        if 0 <= position.log_start_offset < position.offset:
            # It has records and has lost their epochs: nobody can tell where the logs part.
            return EpochEnd(log.latest_epoch, position.log_start_offset)
        # An empty log can't differ, but it can stand beyond the end.
        if position.offset <= log.log_end_offset:
            return None
        return EpochEnd(log.latest_epoch, log.log_end_offset)
    found = epoch_divergence(log, position.last_fetched_epoch, position.offset)
    if found is not None and found.epoch == NO_EPOCH:
        # No leader is older than what it leads; a log that says so is not to be cut on its word.
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"epoch {position.last_fetched_epoch} is unknown to the leader",
        )
    return found


def read(
    partition: Partition, position: FetchPosition, bytes_max: int, at_least_one: bool
) -> LogSlice:
    if position.offset == partition.log.log_end_offset:
        return EMPTY_SLICE
    return partition.read_for_follower(
        position.offset, min(position.max_bytes, bytes_max), at_least_one=at_least_one
    )
