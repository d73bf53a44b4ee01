"""Writes events into the outbox inside the application's own transaction.

    outbox = Outbox()
    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.write(session, "orders", payload, key=order.customer)

The relay sends them if and only if that transaction commits. `key` and `value` are bytes or text,
and are sent as they are. With serializers they are what the serializers encode, as in a producer:

    outbox = Outbox(value_serializer=JsonSerializer())
    outbox.write(session, "orders", {"apples": 2}, key=order.customer)

The row has the encoded bytes, so the relay needs no serializer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Never, TypeAlias

from millstream.client.outbox.schema import TABLE_DEFAULT
from millstream.client.serde_context import Part
from millstream.client.serializer import (
    AnySerializer,
    KeySent,
    PartEncoder,
    ValueSent,
    encoder_of,
)
from millstream.client.sql import checked_name, execute, require_transaction
from millstream.client.tracing.choice import TracingOption
from millstream.client.tracing.outbox_tracing import write_tracing
from millstream.client.wrong_argument import documented, reject_arguments
from millstream.model.error import UsageError

Headers: TypeAlias = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]

_COLUMNS = ("topic", "partition", "key", "value", "headers")


class Outbox(Generic[KeySent, ValueSent]):
    """Writes into the outbox table of this name.

    `key_serializer`, `value_serializer` and `tracing` are as for producers. The headers of a traced
    event have the writer's context. A serializer of a schema registry may wait for the registry
    while the application's transaction is open.
    """

    def __init__(
        self,
        table: str = TABLE_DEFAULT,
        *,
        key_serializer: AnySerializer[KeySent] | None = None,
        value_serializer: AnySerializer[ValueSent] | None = None,
        tracing: TracingOption = None,
    ) -> None:
        self._tracing = write_tracing(tracing)
        self._encode_key = encoder_of("key", key_serializer)
        self._encode_value = encoder_of("value", value_serializer)
        parameters = ", ".join(f"%({name})s" for name in _COLUMNS)
        columns = ", ".join(_COLUMNS)
        self._insert = f"INSERT INTO {checked_name(table)} ({columns}) VALUES ({parameters})"

    @documented
    def write(
        self,
        handle: Any,
        topic: str,
        value: ValueSent | None,
        *extra: Never,
        key: KeySent | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        **unknown: Never,
    ) -> None:
        """Add one event to the transaction of `handle` (see `millstream.client.sql`).

        Key and value are bytes, strings or None, or what the serializers encode. Events of one key
        arrive in the order in which consecutive transactions wrote them. Without a key there is no
        order.
        """
        if extra or unknown:
            reject_arguments(Outbox.write, extra, unknown)
        if not topic:
            raise UsageError("an event needs the name of its topic.")
        require_transaction(handle)
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        # A serializer may add headers.
        key_bytes = _encoded("key", self._encode_key, key, topic, pairs)
        value_bytes = _encoded("value", self._encode_value, value, topic, pairs)
        if self._tracing is not None:
            self._tracing.note(topic, key_bytes, pairs)
        row = {
            "topic": topic,
            "partition": partition,
            "key": key_bytes,
            "value": value_bytes,
            "headers": encode_headers(pairs) if pairs or headers is not None else None,
        }
        execute(handle, self._insert, row)


def encode_headers(headers: Headers) -> str:
    """Return headers as the JSON of the column."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return json.dumps([[name, _to_text(name, value)] for name, value in pairs])


def _encoded(
    part: Part, encoder: PartEncoder | None, given: Any, topic: str, headers: list[tuple[str, Any]]
) -> bytes | None:
    """Return a key or a value as bytes. The serializer may add to `headers`."""
    if encoder is not None:
        return encoder.encode(given, topic, headers)
    if isinstance(given, str):
        return given.encode()
    if given is None or isinstance(given, bytes):
        return given
    raise UsageError(
        f"an event's {part} must be bytes or text, not {type(given).__name__}: create the outbox "
        f"with {part}_serializer=..., for example JsonSerializer()."
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
