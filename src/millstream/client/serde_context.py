"""The record that a serializer works on: its topic, its headers, and whether the bytes are its key.

Most serializers need only the value. One that needs more has `takes_context = True`, and its
`serialize` and `deserialize` get a `RecordContext` as second argument. Producers and consumers
choose the call when they are created, so other serializers cost nothing more.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

Header = tuple[str, bytes | None]
Part = Literal["key", "value"]


class RecordContext(NamedTuple):
    """The part of a record that is serialized or deserialized."""

    topic: str
    part: Part
    #: A serializer may append headers.
    headers: list[Header]


class ContextSerde(Protocol):
    """A serializer that gets the context of each record."""

    takes_context: Literal[True]

    def serialize(self, value: Any, context: RecordContext, /) -> bytes:
        """Return the value as bytes."""

    def deserialize(self, data: bytes, context: RecordContext, /) -> Any:
        """Return the value of these bytes."""


@runtime_checkable
class LoadingSerde(Protocol):
    """A `ContextSerde` that fetches something over the network before it can work.

    asyncio clients call `serialize` on a thread until `is_loaded`. They call `load` on a thread for
    each record that they read, before the application can call `deserialize` on the event loop.
    """

    def is_loaded(self, context: RecordContext, /) -> bool:
        """Whether `serialize` does no I/O for this topic and part."""

    def load(self, data: bytes, context: RecordContext, /) -> None:
        """Fetch what `deserialize` needs for these bytes. Raises nothing: `deserialize` does."""


def must_load(serde: Any, part: Part, topic: str) -> bool:
    """Whether a serializer does I/O before it can serialize for this topic."""
    is_loaded = getattr(serde, "is_loaded", None)
    return is_loaded is not None and not is_loaded(RecordContext(topic, part, []))


def is_on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def takes_context(serde: Any) -> TypeGuard[ContextSerde]:
    """Whether the methods of a serializer need a context."""
    return getattr(serde, "takes_context", False) is True
