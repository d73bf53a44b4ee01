"""Stores the partition updates of many callers, many to a transaction.

When a broker comes back, thousands of leaders change their ISR at the same moment. Each of them
calls `update`. While one transaction is in progress, further updates collect for the next one. If a
transaction fails, its updates are stored one by one, so that each caller gets its own result.

Owns the task that stores updates. The task ends when no update is left, or by `close`.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata import cluster_record as records
from millstream.metadata import partition_change
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.partition_change import PartitionUpdate
from millstream.metadata.store.port import Condition, MetadataStoreError, Put


class _Pending(NamedTuple):
    """An update and the future that its caller awaits."""

    update: PartitionUpdate
    stored: asyncio.Future[PartitionRecord]


class JointUpdates:
    """`update` is `replace_partition` for many callers at once. Event loop only."""

    __slots__ = ("_catalog", "_pending", "_supervisor", "_task")

    def __init__(self, catalog: Catalog, supervisor: Supervisor) -> None:
        self._catalog = catalog
        self._supervisor = supervisor
        self._pending: list[_Pending] = []
        self._task: SupervisedTask | None = None

    async def update(self, update: PartitionUpdate) -> PartitionRecord:
        """Store an update; return the stored record. Raises as `replace_partition` does."""
        stored: asyncio.Future[PartitionRecord] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(update, stored))
        if self._task is None:
            self._task = self._supervisor.start("joint-updates", self._run)
        return await stored

    async def close(self) -> None:
        """Stop. An update in progress may still be stored. No caller may be waiting."""
        if self._task is not None:
            await self._task.stop()

    async def _run(self) -> None:
        # Wait one turn of the loop: updates of the same turn join the first transaction.
        await asyncio.sleep(0)
        while self._pending:
            await self._store(self._pop_next())
        self._task = None

    def _pop_next(self) -> list[_Pending]:
        """Remove and return the updates of the next transaction."""
        # A transaction limits its conditions too, and each broker takes two of them.
        size = max(self._catalog.changes_max - 2 * len(self._catalog.image.brokers), 1)
        pending, self._pending = self._pending[:size], self._pending[size:]
        return [each for each in pending if not each.stored.done()]

    async def _store(self, pending: list[_Pending]) -> None:
        try:
            if len(pending) > 1 and await self._store_jointly(pending):
                return
        except MetadataStoreError as error:
            _fail_all(pending, error)
            return
        except BaseException as error:
            # The callers must not wait for ever.
            _fail_all(pending, MetadataStoreError(f"the change was interrupted: {error!r}"))
            raise
        await asyncio.gather(*map(self._store_alone, pending))

    async def _store_jointly(self, pending: list[_Pending]) -> bool:
        """Store all updates or none; return whether they are stored.

        Raises MetadataStoreError if the outcome is unknown."""
        brokers: dict[int, int] = {}
        conditions: list[Condition] = []
        puts: list[Put] = []
        stored: list[PartitionRecord] = []
        for update, _ in pending:
            present = self._present(update)
            epochs = update.registered.items()
            conflicts = any(brokers.setdefault(*pair) != pair[1] for pair in epochs)
            if present is None or present.partition_epoch != update.expected_epoch or conflicts:
                return False
            key = records.partition_key(update.topic_id, update.partition)
            value = records.encode_partition(present)
            change = partition_change.swap(key, value, update.record, update.expected_epoch)
            conditions.append(change.condition)
            puts.append(change.put)
            stored.append(change.record)
        conditions += partition_change.registration_conditions(brokers)
        if await self._catalog.transact(conditions, puts) is None:
            return False
        for each, record in zip(pending, stored, strict=True):
            if not each.stored.done():
                each.stored.set_result(record)
        return True

    def _present(self, update: PartitionUpdate) -> PartitionRecord | None:
        topic = self._catalog.image.topic_by_id(update.topic_id)
        if topic is None or update.partition >= len(topic.partitions):
            return None
        return topic.partitions[update.partition]

    async def _store_alone(self, pending: _Pending) -> None:
        try:
            record = await partition_change.replace_partition(self._catalog, pending.update)
        except Exception as error:  # noqa: BLE001  # the caller handles it
            _fail(pending, error)
        else:
            if not pending.stored.done():
                pending.stored.set_result(record)


def _fail_all(pending: list[_Pending], error: Exception) -> None:
    for each in pending:
        _fail(each, error)


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.stored.done():
        pending.stored.set_exception(error)
