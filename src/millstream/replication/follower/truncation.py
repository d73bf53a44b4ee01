"""Where a follower cuts its log when the leader says that they differ (KIP-101, KIP-279). Pure.

The leader names the largest epoch that it knows and that is not above the follower's last one, and
where that epoch ends in its own log. The high watermark has no part in it: a follower's may be
older than what was committed, and cutting there once lost acknowledged records.

If the follower does not know the named epoch, it cuts at the end of the largest one before it that
it knows, and asks again. Each round drops at least one epoch, so this ends.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.log.epoch_cache import EpochCache
from millstream.model.sentinel import NO_EPOCH


class EpochEnd(NamedTuple):
    """Where an epoch ends in a log: the offset after its last record."""

    epoch: int
    end_offset: int


def truncation_offset(epochs: EpochCache, log_end_offset: int, leader: EpochEnd) -> int:
    """The offset to cut at. Everything below it is equal in both logs, or is asked for again.

    It may be below the log's start: then nothing that is here is in the leader's log.
    """
    own = EpochEnd(*epochs.end_offset(leader.epoch, log_end_offset))
    if own.epoch == NO_EPOCH:
        # Nothing here is as new as the named epoch, or nothing is known: the leader's word alone.
        offset = leader.end_offset
    elif own.epoch == leader.epoch:
        offset = min(own.end_offset, leader.end_offset)
    else:
        offset = own.end_offset
    return min(offset, log_end_offset)
