"""Whether a claimed batch is in the topic: the pure decision of a relay that takes over a shard.

The database knows which rows the last batch had, Kafka which batch was committed last. Asked after
the shard's former producer is fenced, so neither can change any more.

    claimed    Kafka says          then
    no         nothing             KNOWN, once the number is committed to Kafka (BASELINE)
    no         the same number     KNOWN
    yes        the same number     it is in the topic (SENT)
    yes        the one before      it is not, and never will be (UNSENT)
    otherwise                      one of the two is not what it was: refuse
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Verdict(Enum):
    KNOWN = auto()
    BASELINE = auto()
    SENT = auto()
    UNSENT = auto()


class ProgressLostError(Exception):
    """Database and Kafka do not fit together; whoever goes on may lose or double events."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """A shard as its new owner finds it. `batch` is the last one that was claimed."""

    name: str
    epoch: int
    batch: int
    claimed: bool


def judge(tenure: Tenure, committed: int | None) -> Verdict:
    """What became of the last batch, if Kafka has `committed` as the shard's position."""
    if not tenure.claimed:
        if committed is None:
            return Verdict.BASELINE
        if committed == tenure.batch:
            return Verdict.KNOWN
    elif committed == tenure.batch:
        return Verdict.SENT
    elif committed == tenure.batch - 1:
        return Verdict.UNSENT
    raise ProgressLostError(_explained(tenure, committed))


def _explained(tenure: Tenure, committed: int | None) -> str:
    where = f"group {tenure.name!r}"
    if committed is None:
        return (
            f"batch {tenure.batch} was claimed, and {where} has no position that tells whether it"
            " was sent: it expired or was deleted, or this is another cluster. Look into the topic,"
            " then say it with `millstream outbox settle`."
        )
    return (
        f"the database is at batch {tenure.batch}, {where} at {committed}: the database was"
        " restored or copied, or this is another cluster. Look into the topic, then say which"
        " events were sent with `millstream outbox settle`."
    )
