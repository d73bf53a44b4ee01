"""Writes events into the outbox inside the application's own transaction.

    outbox = Outbox()
    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.write(session, "orders", payload, key=order.customer)

The relay sends them if and only if that transaction commits. `key` and `value` are bytes or text,
and are sent as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from millstream.client.outbox.schema import TABLE_DEFAULT
from millstream.client.sql import checked_name, execute, require_transaction
from millstream.model.error import UsageError

Headers: TypeAlias = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]

_COLUMNS = ("topic", "partition", "key", "value", "headers")


class Outbox:
    """Writes into the outbox table of this name."""

    def __init__(self, table: str = TABLE_DEFAULT) -> None:
        parameters = ", ".join(f"%({name})s" for name in _COLUMNS)
        columns = ", ".join(_COLUMNS)
        self._insert = f"INSERT INTO {checked_name(table)} ({columns}) VALUES ({parameters})"

    def write(
        self,
        handle: Any,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Add one event to the transaction of `handle` (see `millstream.client.sql`).

        Events of one key arrive in the order in which consecutive transactions wrote them. Without
        a key there is no order.
        """
        if not topic:
            raise UsageError("an event needs the name of its topic.")
        require_transaction(handle)
        row = {
            "topic": topic,
            "partition": partition,
            "key": _to_bytes(key, "key"),
            "value": _to_bytes(value, "value"),
            "headers": None if headers is None else encode_headers(headers),
        }
        execute(handle, self._insert, row)


def encode_headers(headers: Headers) -> str:
    """Return headers as the JSON of the column."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return json.dumps([[name, _to_text(name, value)] for name, value in pairs])


def _to_bytes(given: object, what: str) -> bytes | None:
    if isinstance(given, str):
        return given.encode()
    if given is None or isinstance(given, bytes):
        return given
    raise UsageError(
        f"an event's {what} must be bytes or text, not {type(given).__name__}: serialize it first."
    )


def _to_text(name: str, value: object) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"header {name!r} is not UTF-8: the outbox stores headers as text."
            ) from None
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"header {name!r} must be text or bytes, not {type(value).__name__}.")
