"""What a broker does about its partitions before it stops, and before it comes back.

Both need nobody's help: every broker may change a partition's record by compare-and-swap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from millstream.controller import election
from millstream.metadata.catalog import Catalog
from millstream.metadata.partition_change import PartitionChange, update_partitions
from millstream.metadata.record import PartitionRecord

_log = logging.getLogger(__name__)

#: Decides about one partition as it is in the image.
_Decide: TypeAlias = Callable[[PartitionRecord], PartitionRecord | None]
#: Looks at what was overtaken by somebody else's change.
_ROUNDS: Final = 5


async def hand_over(catalog: Catalog, broker_id: int) -> int:
    """Let others lead, before a stop, what they can lead; how many partitions were handed over."""

    def decide(record: PartitionRecord) -> PartitionRecord | None:
        return election.hand_over(record, broker_id, catalog.image.eligible)

    return await _change_all(catalog, decide)


async def distrust(catalog: Catalog, broker_id: int) -> int:
    """After an unclean stop, leave every ISR that has another member; how many were left.

    To be done before the broker is registered, as it could be elected from then on."""

    def decide(record: PartitionRecord) -> PartitionRecord | None:
        return election.distrust(record, broker_id)

    count = await _change_all(catalog, decide)
    if count:
        _log.info("left %d ISRs after an unclean stop, to catch up first", count)
    return count


async def _change_all(catalog: Catalog, decide: _Decide) -> int:
    count = 0
    for _ in range(_ROUNDS):
        changes = [
            PartitionChange(topic.topic_id, number, record, after)
            for topic in catalog.image.topics.values()
            for number, record in enumerate(topic.partitions)
            if (after := decide(record)) is not None
        ]
        if not changes:
            break
        count += sum(await update_partitions(catalog, changes))
    return count
