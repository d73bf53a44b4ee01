"""A consumer that books each message in a database, with its offset in the same transaction.

It is confluent-kafka's consumer with SQLite, and Millstream's with PostgreSQL. Arguments: the
brokers, the topic, the database's address. Runs until it is killed.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import psycopg

from millstream.client import Consumer
from millstream.client.dedup import StaleMessageError, StoredOffsets

GROUP = "accountants"
SESSION_S = 2


def connect_to(address: str) -> Any:
    if address.startswith("sqlite"):
        return sqlite3.connect(address.removeprefix("sqlite:///"), timeout=60)
    return psycopg.connect(address)


def bare_messages(
    bootstrap: str, topic: str, offsets: StoredOffsets
) -> Iterator[tuple[Any, Any, bytes]]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_S * 1000,
        }
    )
    offsets.subscribe(consumer, [topic])
    while True:
        message = consumer.poll(1)
        if message is not None and not message.error():
            yield consumer, message, message.value()


def own_records(
    bootstrap: str, topic: str, offsets: StoredOffsets
) -> Iterator[tuple[Any, Any, bytes]]:
    consumer = Consumer(
        bootstrap,
        group_id=GROUP,
        topics=[topic],
        on_assign=offsets.on_assign,
        session_timeout=SESSION_S,
    )
    for record in consumer:
        yield consumer, record, record.value


def main(bootstrap: str, topic: str, address: str) -> None:
    offsets = StoredOffsets(lambda: connect_to(address), GROUP)
    is_sqlite = address.startswith("sqlite")
    messages = bare_messages if is_sqlite else own_records
    mark = "?" if is_sqlite else "%s"
    for consumer, message, value in messages(bootstrap, topic, offsets):
        with closing(connect_to(address)) as connection:
            booking = f"INSERT INTO booking (value) VALUES ({mark})"
            connection.execute(booking, [value.decode()])
            try:
                offsets.advance(connection, message)
            except StaleMessageError:
                connection.rollback()
                offsets.rewind(consumer, message)
            else:
                connection.commit()


main(*sys.argv[1:])
