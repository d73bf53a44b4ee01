"""Offsets in the database of the application's data: exactly once, whatever crashes.

    offsets = StoredOffsets(connect, group_id="billing")
    with Consumer(group_id="billing", topics=["orders"], on_assign=offsets.on_assign) as consumer:
        for record in consumer:
            with connect() as connection:       # one transaction
                bill(connection, record)
                offsets.advance(connection, record)

A partition's next offset is a row that is updated in the transaction of the application's write.
Members start from the rows; offsets committed to Kafka do not matter. A member that lost a
partition and does not know it yet does no harm: of its transaction and the new owner's, one waits
for the other and then fails with `StaleMessageError`.

A message whose transaction was rolled back has to be retried (`rewind`): the next message's
transaction would skip it.

`on_assign` works for an `AsyncConsumer` as well: it runs on the consumer's thread, so the database
does not block the event loop. There, use `rewind_async` instead of `rewind`.

`<table>`: consumer_group, topic, partition, next_offset (-1: none was processed).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Final

from confluent_kafka import Consumer as RdKafkaConsumer
from confluent_kafka import TopicPartition

from millstream.client.consumer.async_consumer import AsyncConsumer
from millstream.client.consumer.consumer import Consumer
from millstream.client.dedup.message import position_of
from millstream.client.error import UsageError
from millstream.client.old_name import rejects_old_names
from millstream.client.record import Partition
from millstream.client.sql import checked_name, execute, require_transaction
from millstream.model.error import MillstreamError

TABLE_DEFAULT: Final = "millstream_offset"


class StaleMessageError(MillstreamError):
    """The message was processed already: roll back, and `rewind` or skip it."""


def table_definition(table: str = TABLE_DEFAULT) -> str:
    """Return the SQL that creates the table, the same for both databases."""
    return (
        f"CREATE TABLE IF NOT EXISTS {checked_name(table)} (consumer_group TEXT NOT NULL,"
        " topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset BIGINT NOT NULL,"
        " PRIMARY KEY (consumer_group, topic, partition))"
    )


class StoredOffsets:
    """The stored offsets of one group. `connect` returns a new DB-API connection without
    autocommit.

    Works with confluent-kafka's consumers as well. For them, set `incremental` if the assignor is
    cooperative, or the group protocol is `consumer`.
    """

    @rejects_old_names
    def __init__(
        self,
        connect: Callable[[], Any],
        group_id: str = "",
        *,
        table: str = TABLE_DEFAULT,
        incremental: bool = False,
    ) -> None:
        if not group_id:
            raise UsageError("StoredOffsets needs a group: pass group_id='...'.")
        self._connect = connect
        self._group = group_id
        self._table = checked_name(table)
        self._incremental = incremental

    def create_table(self) -> None:
        """Create the table if it is missing."""
        with closing(self._connect()) as connection:
            execute(connection, table_definition(self._table), {})
            connection.commit()

    def subscribe(self, consumer: RdKafkaConsumer, topics: Sequence[str]) -> None:
        """Subscribe a confluent-kafka consumer whose partitions start at their stored offsets."""
        consumer.subscribe(list(topics), on_assign=self.on_assign)

    def on_assign(
        self, consumer: Consumer | RdKafkaConsumer, partitions: Sequence[Partition | TopicPartition]
    ) -> None:
        """Start assigned partitions at their stored offsets. This is the consumer's `on_assign`.

        An `AsyncConsumer` calls it with a `Consumer` too.
        """
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
        """Return the partitions with their stored offsets, if they have any."""
        found = []
        with closing(self._connect()) as connection:
            for each in partitions:
                row_key = self._row_key(each.topic, each.partition)
                execute(
                    connection,
                    f"INSERT INTO {self._table} (consumer_group, topic, partition, next_offset)"
                    " VALUES (%(consumer_group)s, %(topic)s, %(partition)s, -1)"
                    " ON CONFLICT (consumer_group, topic, partition) DO NOTHING",
                    row_key,
                )
                row = execute(
                    connection,
                    f"SELECT next_offset FROM {self._table} WHERE consumer_group"
                    " = %(consumer_group)s AND topic = %(topic)s AND partition = %(partition)s",
                    row_key,
                ).fetchone()
                offset = [row[0]] if row[0] >= 0 else []
                found.append(TopicPartition(each.topic, each.partition, *offset))
            connection.commit()
        return found

    def advance(self, handle: Any, message: Any) -> None:
        """Record in the transaction of `handle` that `message` is processed."""
        require_transaction(handle)
        topic, partition, offset = position_of(message)
        changed = execute(
            handle,
            f"UPDATE {self._table} SET next_offset = %(offset)s + 1 WHERE consumer_group"
            " = %(consumer_group)s AND topic = %(topic)s AND partition = %(partition)s"
            " AND next_offset <= %(offset)s",
            {**self._row_key(topic, partition), "offset": offset},
        )
        if changed.rowcount != 1:
            raise StaleMessageError(
                f"{topic}-{partition} is past offset {offset} in"
                f" the database for group {self._group!r}, or was never assigned here: roll back."
            )

    def rewind(self, consumer: Consumer | RdKafkaConsumer, message: Any) -> None:
        """Move the consumer to the stored offset of the message's partition."""
        topic, partition, _ = position_of(message)
        target = self._target(message)
        if isinstance(consumer, Consumer):
            consumer.seek(topic, partition, offset=target)
        else:
            consumer.seek(TopicPartition(topic, partition, target))

    async def rewind_async(self, consumer: AsyncConsumer, message: Any) -> None:
        """As `rewind`, for asyncio. The database query runs on a thread."""
        topic, partition, _ = position_of(message)
        target = await asyncio.to_thread(self._target, message)
        await consumer.seek(topic, partition, offset=target)

    def _target(self, message: Any) -> int:
        topic, partition, offset = position_of(message)
        (stored,) = self.load([Partition(topic, partition)])
        return stored.offset if stored.offset >= 0 else offset

    def _row_key(self, topic: str, partition: int) -> dict[str, Any]:
        return {"consumer_group": self._group, "topic": topic, "partition": partition}
