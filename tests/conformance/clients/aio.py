"""aiokafka, driven from synchronous tests by one event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

import aiokafka
from clients.contract import (
    CODECS,
    FETCH_WAIT_MS,
    MESSAGE_BYTES_MAX,
    NULL_BOTH,
    WAIT_SECONDS_MAX,
    Record,
    Settings,
)

T = TypeVar("T")


class AiokafkaClient:
    name: ClassVar[str] = "aiokafka"
    codecs: ClassVar[Sequence[str]] = CODECS
    lacks: ClassVar[frozenset[str]] = frozenset({NULL_BOTH})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, WAIT_SECONDS_MAX))

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], settings: Settings
    ) -> list[int]:
        return self._run(self._produce(topic, partition, records, settings))

    async def _produce(
        self, topic: str, partition: int, records: Sequence[Record], settings: Settings
    ) -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if settings.codec == "none" else settings.codec,
            acks="all" if settings.acks == "all" else int(settings.acks),
            enable_idempotence=bool(settings.idempotent),
            max_request_size=MESSAGE_BYTES_MAX,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=partition,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in records
            ]
            responses = await asyncio.gather(*sent)
        finally:
            await producer.stop()
        return [-1 if response is None else response.offset for response in responses]

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        return self._run(self._consume(topic, partition, count, offset=offset))

    def consume_from_time(
        self, topic: str, partition: int, timestamp: int, count: int
    ) -> list[Record]:
        return self._run(self._consume(topic, partition, count, timestamp=timestamp))

    async def _consume(
        self,
        topic: str,
        partition: int,
        count: int,
        *,
        offset: int = -1,
        timestamp: int | None = None,
    ) -> list[Record]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        await consumer.start()
        try:
            assigned = aiokafka.TopicPartition(topic, partition)
            consumer.assign([assigned])
            if timestamp is not None:
                found = await consumer.offsets_for_times({assigned: timestamp})
                offset = found[assigned].offset
            consumer.seek(assigned, offset)
            return [self._to_record(await consumer.getone()) for _ in range(count)]
        finally:
            await consumer.stop()

    @staticmethod
    def _to_record(message: Any) -> Record:
        return Record(
            message.key, message.value, tuple(message.headers), message.timestamp, message.offset
        )

    def close(self) -> None:
        self._loop.close()
