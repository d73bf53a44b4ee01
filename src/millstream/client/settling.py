"""Where partitions begin that a group assigns: at its committed offsets, once these are certain.

An open transaction may change an offset yet, as when its producer was killed before it ended it.
librdkafka waits for such an offset as well; but if the group rebalances meanwhile, version 2.16
takes it for none at all, and begins where `auto.offset.reset` says. So offsets are asked for here,
and a partition whose offset is not certain is held back until it is.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as Handle

from millstream.client.admin import Admin
from millstream.client.error import ClientError, error_of
from millstream.client.lane import LOGGER
from millstream.client.record import Partition
from millstream.client.setting import ConsumerSettings

#: librdkafka answers when all offsets are certain; others take milliseconds.
_ANSWER_S: Final = 1.0
_PAUSE_S: Final = 0.5


class Settling:
    """Not for several threads at once."""

    def __init__(self, handle: Handle, group: str, open_admin: Callable[[], Admin]) -> None:
        self._handle = handle
        self._group = group
        self._open_admin = open_admin
        #: Asks without waiting. Most consumers never need it.
        self._admin: Admin | None = None
        self.waiting: set[Partition] = set()
        self._look_at = 0.0

    @property
    def is_due(self) -> bool:
        return bool(self.waiting) and time.monotonic() >= self._look_at

    def placed(self, rows: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Rows that are about to be assigned, each with its offset. Those that have to wait are put
        at their end, and must be paused."""
        if not rows:
            return []
        try:
            return list(self._handle.committed(list(rows), timeout=_ANSWER_S))
        except KafkaException as error:
            if error_of(error).code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                # librdkafka asks again, and tells the application what is wrong.
                return list(rows)
        self.waiting |= {Partition(row.topic, row.partition) for row in rows}
        self._look_at = 0.0
        return [TopicPartition(row.topic, row.partition, OFFSET_END) for row in rows]

    def look(self) -> dict[Partition, int]:
        """Where partitions begin that need not wait any longer; -1 if nothing is committed."""
        if not self.is_due:
            return {}
        self._look_at = time.monotonic() + _PAUSE_S
        if self._admin is None:
            self._admin = self._open_admin()
        try:
            found = self._admin.settled_offsets(self._group, self.waiting)
        except ClientError as error:
            LOGGER.warning("Offsets of group %s are asked for again: %s", self._group, error)
            return {}
        for partition in self.waiting - found.keys():
            LOGGER.info("%s-%s waits for a transaction that has its offset", *partition)
        return found

    def drop(self, partitions: Iterable[Partition]) -> None:
        """They need no offset any more."""
        self.waiting.difference_update(partitions)
        if not self.waiting:
            self._admin = None


def settling_for(
    handle: Handle, servers: str | None, group: str | None, settings: ConsumerSettings
) -> Settling | None:
    """Nobody has committed offsets without a group."""
    if group is None:
        return None
    return Settling(handle, group, functools.partial(Admin, servers, config=settings.config))
