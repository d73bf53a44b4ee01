"""Where a reader's log diverges from this broker's log. The only owner of that rule (KIP-320).

A reader names the offset that it fetches next and the leader epoch of its last record. If that
epoch ends earlier in this log, or does not exist here, the logs diverge. The response then names
the largest epoch up to the reader's that this log has, and where it ends. The reader truncates, or
seeks, to that end.
"""

from __future__ import annotations

from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_EPOCH
from millstream.replication.follower.truncation import EpochEnd
from millstream.replication.leader.fetch_position import FetchPosition


def epoch_divergence(log: PartitionLog, last_fetched_epoch: int, offset: int) -> EpochEnd | None:
    """Return the epoch and offset at which a reader diverges from `log` before `offset`, or None.

    The epoch of the result is NO_EPOCH if every epoch of `log` is above `last_fetched_epoch`."""
    epoch, end_offset = log.epoch_end_offset(last_fetched_epoch)
    if epoch == last_fetched_epoch and end_offset >= offset:
        return None
    return EpochEnd(epoch, end_offset)


def follower_divergence(log: PartitionLog, position: FetchPosition) -> EpochEnd | None:
    """Return where a follower's log diverges from the leader's log before its end, or None.

    OFFSET_OUT_OF_RANGE if the leader's log starts after the follower's end."""
    if position.offset < log.log_start_offset:
        raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if position.last_fetched_epoch == NO_EPOCH:
        if 0 <= position.log_start_offset < position.offset:
            # The follower has records but lost their epochs, so it truncates to its log start.
            return EpochEnd(log.latest_epoch, position.log_start_offset)
        # An empty log cannot diverge, but it can start after the leader's log end.
        if position.offset <= log.log_end_offset:
            return None
        return EpochEnd(log.latest_epoch, log.log_end_offset)
    found = epoch_divergence(log, position.last_fetched_epoch, position.offset)
    if found is not None and found.epoch == NO_EPOCH:
        # A leader's log has every epoch of its followers. If it does not, nothing is truncated.
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"epoch {position.last_fetched_epoch} is unknown to the leader",
        )
    return found
