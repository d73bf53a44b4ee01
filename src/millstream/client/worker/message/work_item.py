"""One message that a worker holds, from the poll that read it until its offset may be committed."""

from __future__ import annotations

import math
from typing import Final

from millstream.client.record import Partition, Record
from millstream.client.worker.message.header import Origin, OutputRecord

#: Estimated memory of a message beside its key and value.
_OVERHEAD_BYTES: Final = 512


class WorkItem:
    """One message. `attempts` is the number of attempts that were started and count."""

    __slots__ = (
        "attempts",
        "deaths",
        "due",
        "expires",
        "is_dead",
        "is_dropped",
        "is_parked",
        "is_tracked",
        "offset",
        "origin",
        "outputs",
        "partition",
        "queue_key",
        "record",
        "size",
    )

    def __init__(
        self,
        partition: Partition,
        record: Record,
        origin: Origin,
        queue_key: object,
        due: float = 0.0,
    ) -> None:
        self.record = record
        self.origin = origin
        self.partition = partition
        self.offset = record.offset
        #: Items with the same key run one after the other. None: the item has no order.
        self.queue_key = queue_key
        self.due = due
        #: When the message's time to live ends.
        self.expires = math.inf
        self.attempts = origin.attempts
        #: Processes that died while this message was in progress.
        self.deaths = 0
        #: The item starts only after committed offset metadata names it.
        self.is_tracked = False
        #: The item's output is its dead letter.
        self.is_dead = False
        #: The partition was revoked.
        self.is_dropped = False
        #: The message is due after its time in the parked partition: then it moves to another one.
        self.is_parked = False
        self.outputs: list[OutputRecord] = []
        self.size = _OVERHEAD_BYTES + len(record.raw_key or b"") + len(record.raw_value or b"")
