"""A consumer that books each message in a database, its offset in the same transaction.

Arguments: the brokers, the topic, the database's address. Runs until it is killed.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import Any

import psycopg
from confluent_kafka import Consumer

from millstream.client.dedup import StaleMessageError, StoredOffsets


def connect_to(address: str) -> Any:
    if address.startswith("sqlite"):
        return sqlite3.connect(address.removeprefix("sqlite:///"), timeout=60)
    return psycopg.connect(address)


def main(bootstrap: str, topic: str, address: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "accountants",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    offsets = StoredOffsets(lambda: connect_to(address), "accountants")
    offsets.subscribe(consumer, [topic])
    mark = "?" if address.startswith("sqlite") else "%s"
    while True:
        message = consumer.poll(1)
        if message is None or message.error():
            continue
        with closing(connect_to(address)) as connection:
            booking = f"INSERT INTO booking (value) VALUES ({mark})"
            connection.execute(booking, [message.value().decode()])
            try:
                offsets.advance(connection, message)
            except StaleMessageError:
                connection.rollback()
                offsets.rewind(consumer, message)
            else:
                connection.commit()


main(*sys.argv[1:])
