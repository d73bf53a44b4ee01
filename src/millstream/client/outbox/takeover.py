"""Whether a claimed batch is in the topic: the decision of a relay that takes over a shard. Pure.

The database knows the rows of the last batch, Kafka the batch that was committed last. The relay
reads both after it fenced the shard's previous producer, so neither can change any more.

    claimed    committed to Kafka  then
    no         nothing             KNOWN, once the number is committed to Kafka (BASELINE)
    no         the same number     KNOWN
    yes        the same number     it is in the topic (SENT)
    yes        the one before      it is not, and never will be (UNSENT)
    otherwise                      the database or Kafka was replaced: raise an error
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from millstream.model.error import MillstreamError


class BatchOutcome(Enum):
    """Whether the last claimed batch is in the topic."""

    KNOWN = auto()
    BASELINE = auto()
    SENT = auto()
    UNSENT = auto()


class ProgressLostError(MillstreamError):
    """Database and Kafka contradict each other. Continuing may lose or duplicate events."""


@dataclass(frozen=True, slots=True)
class ShardTakeover:
    """A shard as its new owner finds it. `batch` is the last one that was claimed."""

    name: str
    epoch: int
    batch: int
    claimed: bool


def batch_outcome(takeover: ShardTakeover, committed: int | None) -> BatchOutcome:
    """Return what happened to the last batch, given the shard's offset committed to Kafka."""
    if not takeover.claimed:
        if committed is None:
            return BatchOutcome.BASELINE
        if committed == takeover.batch:
            return BatchOutcome.KNOWN
    elif committed == takeover.batch:
        return BatchOutcome.SENT
    elif committed == takeover.batch - 1:
        return BatchOutcome.UNSENT
    raise ProgressLostError(_explanation(takeover, committed))


def _explanation(takeover: ShardTakeover, committed: int | None) -> str:
    where = f"group {takeover.name!r}"
    if committed is None:
        return (
            f"batch {takeover.batch} was claimed, and {where} has no committed offset that tells"
            " whether it was sent: the offset expired or was deleted, or this is another cluster."
            " Check the topic, then run `millstream outbox settle`."
        )
    return (
        f"the database is at batch {takeover.batch}, {where} at {committed}: the database was"
        " restored or copied, or this is another cluster. Check the topic, then run"
        " `millstream outbox settle`."
    )
