"""Offsets in the database of the business data: exactly once, whatever crashes.

    offsets = StoredOffsets(connect, group="billing")
    with Consumer(group="billing", topics=["orders"], on_assign=offsets.on_assign) as consumer:
        for record in consumer:
            with connect() as connection:       # one transaction
                bill(connection, record)
                offsets.advance(connection, record)

A partition's next offset is a row that moves in the transaction of the business write. Members
resume from the rows; what is committed to Kafka does not matter. A member that lost a partition and
does not know it yet can't do harm: its transaction waits for the new owner's and then fails with
`StaleMessageError`, or the other way round.

A message whose transaction was rolled back has to be tried again (`rewind`): the next one's would
pass over it.

`on_assign` serves an `AsyncConsumer` as well: it runs on the consumer's thread, so the database
does not hold up the event loop. There `rewind_async` takes the place of `rewind`.

`<table>`: consumer_group, topic, partition, next_offset (-1: none was processed).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Final

from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import TopicPartition

from millstream.client.consumer.async_consumer import AsyncConsumer
from millstream.client.consumer.consumer import Consumer
from millstream.client.dedup.message import place_of
from millstream.client.record import Partition
from millstream.client.sql import checked_name, execute, require_transaction

TABLE_DEFAULT: Final = "millstream_offset"


class StaleMessageError(Exception):
    """The message was processed already; roll back, and `rewind` or skip it."""


def table_definition(table: str = TABLE_DEFAULT) -> str:
    """The SQL that makes the table, the same for both databases."""
    return (
        f"CREATE TABLE IF NOT EXISTS {checked_name(table)} (consumer_group TEXT NOT NULL,"
        " topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset BIGINT NOT NULL,"
        " PRIMARY KEY (consumer_group, topic, partition))"
    )


class StoredOffsets:
    """See the module's text. `connect` gives a new DB-API connection without autocommit.

    Works with confluent-kafka's consumers as well; there `incremental` says that the assignor is
    cooperative, or the group protocol `consumer`.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        group: str,
        *,
        table: str = TABLE_DEFAULT,
        incremental: bool = False,
    ) -> None:
        self._connect = connect
        self._group = group
        self._table = checked_name(table)
        self._incremental = incremental

    def create_table(self) -> None:
        with closing(self._connect()) as connection:
            execute(connection, table_definition(self._table), {})
            connection.commit()

    def subscribe(self, consumer: BareConsumer, topics: Sequence[str]) -> None:
        """Subscribe one of confluent-kafka's, so that partitions begin at their stored offsets."""
        consumer.subscribe(list(topics), on_assign=self.on_assign)

    def on_assign(
        self, consumer: Consumer | BareConsumer, partitions: Sequence[Partition | TopicPartition]
    ) -> None:
        """The callback: assigned partitions begin at their stored offsets. An `AsyncConsumer` calls
        it with a `Consumer`, too."""
        found = self.load(partitions)
        if isinstance(consumer, Consumer):
            for each in found:
                if each.offset >= 0:
                    consumer.seek(each.topic, each.partition, offset=each.offset)
        elif self._incremental:
            consumer.incremental_assign(found)
        else:
            consumer.assign(found)

    def load(self, partitions: Iterable[Partition | TopicPartition]) -> list[TopicPartition]:
        """The partitions at their stored offsets; without an offset where none was processed."""
        found = []
        with closing(self._connect()) as connection:
            for each in partitions:
                place = self._place(each.topic, each.partition)
                execute(
                    connection,
                    f"INSERT INTO {self._table} (consumer_group, topic, partition, next_offset)"
                    " VALUES (%(consumer_group)s, %(topic)s, %(partition)s, -1)"
                    " ON CONFLICT (consumer_group, topic, partition) DO NOTHING",
                    place,
                )
                row = execute(
                    connection,
                    f"SELECT next_offset FROM {self._table} WHERE consumer_group"
                    " = %(consumer_group)s AND topic = %(topic)s AND partition = %(partition)s",
                    place,
                ).fetchone()
                offset = [row[0]] if row[0] >= 0 else []
                found.append(TopicPartition(each.topic, each.partition, *offset))
            connection.commit()
        return found

    def advance(self, handle: Any, message: Any) -> None:
        """Note in the transaction of `handle` that `message` was processed with it."""
        require_transaction(handle)
        topic, partition, offset = place_of(message)
        changed = execute(
            handle,
            f"UPDATE {self._table} SET next_offset = %(offset)s + 1 WHERE consumer_group"
            " = %(consumer_group)s AND topic = %(topic)s AND partition = %(partition)s"
            " AND next_offset <= %(offset)s",
            {**self._place(topic, partition), "offset": offset},
        )
        if changed.rowcount != 1:
            raise StaleMessageError(
                f"{topic}-{partition} is past offset {offset} in"
                f" the database for group {self._group!r}, or was never assigned here: roll back."
            )

    def rewind(self, consumer: Consumer | BareConsumer, message: Any) -> None:
        """Have the consumer go on at the stored offset of the message's partition."""
        topic, partition, _ = place_of(message)
        target = self._target(message)
        if isinstance(consumer, Consumer):
            consumer.seek(topic, partition, offset=target)
        else:
            consumer.seek(TopicPartition(topic, partition, target))

    async def rewind_async(self, consumer: AsyncConsumer, message: Any) -> None:
        """`rewind` for asyncio. The database is asked on a thread."""
        topic, partition, _ = place_of(message)
        target = await asyncio.to_thread(self._target, message)
        await consumer.seek(topic, partition, offset=target)

    def _target(self, message: Any) -> int:
        topic, partition, offset = place_of(message)
        (stored,) = self.load([Partition(topic, partition)])
        return stored.offset if stored.offset >= 0 else offset

    def _place(self, topic: str, partition: int) -> dict[str, Any]:
        return {"consumer_group": self._group, "topic": topic, "partition": partition}
