"""The default number of replicas of a topic, and how many must be in sync. Pure.

Owns the two rules that every part of the broker shares:

    effective minimum   `min.insync.replicas`, but never more than the partition has replicas. A
                        minimum that no ISR could ever reach would reject every write.
    defaults            one replica per broker, up to three. With three replicas or more, two must
                        be in sync: a record that was acknowledged survives the loss of any one
                        broker, and one broker may be down without stopping producers.

        brokers                 1    2    3 and more
        replicas                1    2    3
        min.insync.replicas     1    1    2

The default minimum follows from a partition's own replicas, not from the brokers that are alive.
So it does not fall when a broker dies, and a broker that joins does not change existing topics.
`metadata/min_isr` applies the rules to a partition's record.
"""

from __future__ import annotations

from typing import Final

#: More replicas cost more than they protect, so they are not a default.
REPLICAS_MAX: Final = 3
#: With fewer replicas, none could fail while two must be in sync.
_REPLICAS_FOR_TWO_IN_SYNC: Final = 3


def default_replicas(brokers: int) -> int:
    """Return the replication factor of new topics in a cluster of this many brokers."""
    return max(1, min(brokers, REPLICAS_MAX))


def default_min_isr(replicas: int) -> int:
    """Return the default `min.insync.replicas` of a partition."""
    return 2 if replicas >= _REPLICAS_FOR_TWO_IN_SYNC else 1


def effective_min_isr(configured: int | None, replicas: int) -> int:
    """Return how many replicas must be in sync; `configured` is None if it is not set."""
    return default_min_isr(replicas) if configured is None else min(configured, replicas)
