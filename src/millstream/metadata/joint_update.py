"""Changes of partitions that are asked for one by one, stored many at a time.

When a broker comes back, thousands of leaders want to change their ISR in the same moment. Each
asks for itself; while one transaction is under way, whatever is asked for meanwhile makes up the
next. One that can't be stored as a whole is taken apart, so that each gets its own answer.

Owns the task that stores, which ends by itself when nothing is left, or by `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata import cluster_record as records
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.standing import still_there
from millstream.metadata.store.port import Compare, Put, StoreError, ValueIs
from millstream.model.topic import TopicId


class _Asked(NamedTuple):
    topic_id: TopicId
    partition: int
    record: PartitionRecord
    expected_epoch: int
    registered: Mapping[int, int]
    answer: asyncio.Future[PartitionRecord]


class JointUpdates:
    """`update` is `Catalog.update_partition` for many callers at once. Event loop only."""

    __slots__ = ("_asked", "_catalog", "_supervisor", "_task")

    def __init__(self, catalog: Catalog, supervisor: Supervisor) -> None:
        self._catalog = catalog
        self._supervisor = supervisor
        self._asked: list[_Asked] = []
        self._task: SupervisedTask | None = None

    async def update(
        self,
        topic_id: TopicId,
        partition: int,
        record: PartitionRecord,
        expected_epoch: int,
        registered: Mapping[int, int],
    ) -> PartitionRecord:
        answer: asyncio.Future[PartitionRecord] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(topic_id, partition, record, expected_epoch, registered, answer))
        if self._task is None:
            self._task = self._supervisor.start("joint-updates", self._run)
        return await answer

    async def close(self) -> None:
        """End what is under way, which may be stored all the same. Nobody may wait for answers."""
        if self._task is not None:
            await self._task.stop()

    async def _run(self) -> None:
        # Not at once: whoever asks in the same turn of the loop comes along.
        await asyncio.sleep(0)
        while self._asked:
            await self._store(self._take())
        self._task = None

    def _take(self) -> list[_Asked]:
        # A transaction's size bounds its compares too, and each broker is compared with twice.
        size = max(self._catalog.changes_max - 2 * len(self._catalog.image.brokers), 1)
        asked, self._asked = self._asked[:size], self._asked[size:]
        return [each for each in asked if not each.answer.done()]

    async def _store(self, asked: list[_Asked]) -> None:
        try:
            if len(asked) > 1 and await self._store_jointly(asked):
                return
        except StoreError as error:
            _fail_all(asked, error)
            return
        except BaseException as error:
            # Nobody expects it, but those who have asked must not wait for ever.
            _fail_all(asked, StoreError(f"the change was interrupted: {error!r}"))
            raise
        await asyncio.gather(*map(self._store_alone, asked))

    async def _store_jointly(self, asked: list[_Asked]) -> bool:
        """Store all or none. Raises StoreError where nobody knows."""
        brokers: dict[int, int] = {}
        compares: list[Compare | ValueIs] = []
        puts: list[Put] = []
        stored: list[PartitionRecord] = []
        for each in asked:
            present = self._present(each)
            clashes = any(brokers.setdefault(*pair) != pair[1] for pair in each.registered.items())
            if present is None or present.partition_epoch != each.expected_epoch or clashes:
                return False
            key = records.partition_key(each.topic_id, each.partition)
            after = msgspec.structs.replace(each.record, partition_epoch=each.expected_epoch + 1)
            compares.append(ValueIs(key, records.encode_partition(present)))
            puts.append(Put(key, records.encode_partition(after)))
            stored.append(after)
        for node_id, epoch in brokers.items():
            compares += still_there(node_id, epoch)
        if await self._catalog.transact(compares, puts) is None:
            return False
        for each, record in zip(asked, stored, strict=True):
            if not each.answer.done():
                each.answer.set_result(record)
        return True

    def _present(self, asked: _Asked) -> PartitionRecord | None:
        topic = self._catalog.image.topic_by_id(asked.topic_id)
        if topic is None or asked.partition >= len(topic.partitions):
            return None
        return topic.partitions[asked.partition]

    async def _store_alone(self, asked: _Asked) -> None:
        try:
            record = await self._catalog.update_partition(*asked[:5])
        except Exception as error:  # noqa: BLE001  # whoever has asked handles it
            _fail(asked, error)
        else:
            if not asked.answer.done():
                asked.answer.set_result(record)


def _fail_all(asked: list[_Asked], error: Exception) -> None:
    for each in asked:
        _fail(each, error)


def _fail(asked: _Asked, error: Exception) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(error)
