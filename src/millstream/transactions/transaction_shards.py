"""All transaction shards of this broker: the partitions of `__transaction_state` that it leads.

Adds to `coordination.shards` a background task that deletes unused transactional ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.coordination.effects import TimerKey
from millstream.coordination.journal import JournalOptions
from millstream.coordination.shard import LedPartition, ShardState
from millstream.coordination.shards import CoordinatorShards
from millstream.env.clock import Clock
from millstream.env.supervisor import Supervisor, Work
from millstream.replication.replicas import Replicas
from millstream.transactions.marker_sender import MarkerSender
from millstream.transactions.state import TransactionMetadata, TransactionState
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.transactions.transaction_shard import (
    TransactionShard,
    TransactionShardContext,
    TransactionStats,
)

_logger = logging.getLogger(__name__)

#: Transactions counted before the event loop runs other tasks.
_PER_TURN: Final = 2000


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """The broker's settings for transactions and their coordinator."""

    #: The cluster's transaction version at the start.
    version: int = 2
    timeout_ms_max: int = 900_000
    #: Whether producers may start transactions without a timeout.
    is_two_phase_allowed: bool = True
    id_expiration_ms: int = 7 * 24 * 3_600_000
    id_check_interval_ms: int = 3_600_000
    #: Bytes per read while a partition is loaded.
    load_bytes: int = 1024 * 1024
    journal: JournalOptions = field(default_factory=JournalOptions)


class TransactionShards(CoordinatorShards[TransactionShard]):
    """The transaction shards of this broker. Event loop only."""

    __slots__ = ("_context", "options")

    topic = TRANSACTIONS_TOPIC
    kind = "transaction"

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        supervisor: Supervisor,
        sender: MarkerSender,
        options: TransactionOptions,
    ) -> None:
        super().__init__(replicas, clock, supervisor)
        self._context = TransactionShardContext(
            sender, options.version, lambda: self.now_ms, replicas.failures
        )
        #: May be replaced while the broker runs; only `set_version` changes the version.
        self.options = options

    def set_version(self, version: int) -> None:
        """Change the cluster's transaction version, also for open transactions."""
        if version == self._context.version:
            return
        self._context.version = version
        for shard in self._shards.values():
            for transaction in shard.transactions.values():
                transaction.version = version

    @property
    def stats(self) -> TransactionStats:
        return self._context.stats

    @property
    def _journal_options(self) -> JournalOptions:
        return self.options.journal

    @property
    def _load_bytes(self) -> int:
        return self.options.load_bytes

    def _make(self, led: LedPartition) -> TransactionShard:
        return TransactionShard(led, self._set_timer, self._context)

    def _expire_timer(self, shard: TransactionShard, owner: str, key: TimerKey) -> None:
        shard.expire_timer(self.now_ms, owner, key)

    def all_transactions(self) -> Iterator[TransactionMetadata]:
        """Yield all transactions; raise COORDINATOR_LOAD_IN_PROGRESS if a shard is not loaded."""
        for shard in self.all():
            yield from shard.transactions.values()

    async def count_open(self) -> int:
        """Return the number of open transactions in loaded shards. Yields to the event loop."""
        count = 0
        for shard in list(self._shards.values()):
            transactions = list(shard.transactions.values())
            for start in range(0, len(transactions), _PER_TURN):
                part = transactions[start : start + _PER_TURN]
                count += sum(each.state is TransactionState.ONGOING for each in part)
                await asyncio.sleep(0)
        return count

    # Expiry

    def _background(self) -> dict[str, Work]:
        return {"transactional-id-expiry": self._expire_regularly}

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.options.id_check_interval_ms / 1000)
            await self.expire_ids()

    async def expire_ids(self) -> int:
        """Delete transactional ids that were unused for the expiration time; return how many."""
        count = 0
        for shard in list(self._shards.values()):
            if shard.state is ShardState.ACTIVE:
                count += self._expire_ids_of(shard)
            await asyncio.sleep(0)
        if count:
            _logger.info("%d transactional ids expired", count)
        return count

    def _expire_ids_of(self, shard: TransactionShard) -> int:
        try:
            return shard.expire_ids(self.now_ms, self.options.id_expiration_ms)
        except Exception as error:  # noqa: BLE001  # reported; the loop continues
            about = f"partition {shard.index}"
            self._supervisor.report("transactional-id-expiry", error, about)
            return 0
