"""The offset to which a follower truncates a log that diverges (KIP-101, KIP-279). Pure.

The leader names its largest epoch that is not above the follower's last one, and where that epoch
ends in its log. The high watermark plays no part: a follower's may be below committed records, and
truncating there would lose acknowledged records.

If the follower does not know the named epoch, it truncates to the end of the largest smaller epoch
that it knows, and fetches again. Each round drops at least one epoch, so this ends.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.log.epoch_cache import EpochCache
from millstream.model.sentinel import NO_EPOCH


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record."""

    epoch: int
    end_offset: int


def truncation_offset(epochs: EpochCache, log_end_offset: int, leader: EpochEnd) -> int:
    """Return the offset to truncate to. Below it the logs are equal, or the next round decides.

    It may be below the log start: then no record of this log is in the leader's log.
    """
    own = EpochEnd(*epochs.end_offset(leader.epoch, log_end_offset))
    if own.epoch == NO_EPOCH:
        # This log has no epoch up to the named one, so the leader's end offset decides.
        offset = leader.end_offset
    elif own.epoch == leader.epoch:
        offset = min(own.end_offset, leader.end_offset)
    else:
        offset = own.end_offset
    return min(offset, log_end_offset)
