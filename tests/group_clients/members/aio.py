"""A member that uses aiokafka, which supports the classic protocol only.

Rebalances run concurrently with the reader and wait for the listener. The lock keeps them from
running while records are processed. Records may arrive before the listener's call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from reporting import HOLD_POLL_SECONDS, POLL_SECONDS, EventReporter, Orders


class Member(ConsumerRebalanceListener):
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._reporter = EventReporter()
        self._lock = asyncio.Lock()
        self._is_assigned = asyncio.Event()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=orders.bootstrap,
            group_id=orders.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=orders.session_ms,
            heartbeat_interval_ms=orders.heartbeat_ms,
            metadata_max_age_ms=500,
            fetch_max_wait_ms=100,
            max_poll_records=orders.records_max,
        )

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        async with self._lock:
            self._is_assigned.clear()
            self._reporter.revoked(each.partition for each in revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        async with self._lock:
            self._reporter.assigned(each.partition for each in assigned)
            self._is_assigned.set()

    async def run(self) -> None:
        self._consumer.subscribe([self._orders.topic], listener=self)
        await self._consumer.start()
        while not self._orders.is_stopping:
            found = await self._consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
            if found:
                await self._is_assigned.wait()
                async with self._lock:
                    await self._work(found)
        # aiokafka does not call the listener when the consumer leaves.
        self._reporter.revoked(set(self._reporter.owned))
        await self._consumer.stop()

    async def _work(self, found: dict[TopicPartition, list[Any]]) -> None:
        for place, records in found.items():
            for record in records:
                self._reporter.processed(place.partition, record.offset, record.value)
        if self._orders.is_held:
            self._reporter.holding()
            while self._orders.is_held:  # noqa: ASYNC110  # the hold is a file
                await asyncio.sleep(HOLD_POLL_SECONDS)
        offsets = {place: records[-1].offset + 1 for place, records in found.items()}
        self._reporter.committing({place.partition: offset for place, offset in offsets.items()})
        try:
            await self._consumer.commit(offsets)
        except KafkaError as error:
            self._reporter.refused(repr(error))
        else:
            self._reporter.committed()


async def main() -> None:
    await Member(Orders()).run()


if __name__ == "__main__":
    asyncio.run(main())
