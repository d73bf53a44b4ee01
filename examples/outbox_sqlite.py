"""An event that belongs to a database transaction: the outbox, with SQLite.

python -m examples.outbox_sqlite
millstream outbox relay --database sqlite:///shop.db
"""

from __future__ import annotations

import json
import sqlite3
import sys

from millstream import Outbox, OutboxSchema


def place_order(database: sqlite3.Connection, customer: str, item: str) -> None:
    """Store an order and its event. Both exist, or neither."""
    with database:
        database.execute("INSERT INTO orders VALUES (?, ?)", (customer, item))
        Outbox().write(database, "orders", json.dumps({"item": item}), key=customer)
        if item == "nothing":
            raise ValueError("an order needs an item")


def main(path: str = "shop.db") -> None:
    """Place two orders. The second one fails, and so does its event."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS orders (customer TEXT, item TEXT)")
    for statement in OutboxSchema().statements("sqlite"):
        database.execute(statement)
    database.commit()
    place_order(database, "alice", "2 apples")
    try:
        place_order(database, "bob", "nothing")
    except ValueError as error:
        print("rejected:", error)
    for key, value in database.execute("SELECT key, value FROM millstream_outbox"):
        print("to send:", key.decode(), value.decode())
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
