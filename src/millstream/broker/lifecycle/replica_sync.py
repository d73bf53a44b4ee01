"""Whether the replicas of this broker are in sync: the response of `/readyz/in-sync`.

A rolling restart waits for it before it stops the next broker. Two kinds of replicas do not count:
replicas of partitions without a leader, which cannot catch up, and replicas that a reassignment
adds, which no partition relies on yet.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millstream.metadata.registration import Registration
from millstream.model.sentinel import NO_LEADER
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas

#: Partitions that are checked before other work of the event loop gets its turn.
_PER_SLICE: Final = 500
#: Partitions that the reason names.
_NAMED_MAX: Final = 5


async def sync_problem(replicas: Replicas, registration: Registration) -> str | None:
    """Return why this broker does not count as in sync; None if it does."""
    if registration.is_fenced:
        return "the broker is fenced: its lease in the metadata store may have expired"
    late: list[str] = []
    all_replicas = list(replicas)
    for number, partition in enumerate(all_replicas, 1):
        if number % _PER_SLICE == 0:
            await asyncio.sleep(0)
        if _is_late(partition):
            late.append("{}-{}".format(*partition.topic_partition))
    if not late:
        return None
    named = ", ".join(sorted(late)[:_NAMED_MAX]) + (", ..." if len(late) > _NAMED_MAX else "")
    return f"{len(late)} of {len(all_replicas)} replicas are not in sync ({named})"


def _is_late(partition: Partition) -> bool:
    state, broker_id = partition.state, partition.broker_id
    return (
        broker_id in state.replicas
        and broker_id not in state.isr
        and broker_id not in state.adding
        and state.leader != NO_LEADER
    )
