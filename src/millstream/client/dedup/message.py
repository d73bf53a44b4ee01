"""The fields of a message that dedup reads: of a `Record` or a `Job`, or of confluent-kafka's
`Message`, where each field is a method."""

from __future__ import annotations

from typing import Any, NamedTuple


class MessagePosition(NamedTuple):
    """The position of a message in the log."""

    topic: str
    partition: int
    offset: int


def position_of(message: Any) -> MessagePosition:
    """Return the position of a message."""
    return MessagePosition(*(_read(message, name) for name in MessagePosition._fields))


def headers_of(message: Any) -> list[tuple[str, bytes | str | None]]:
    """Return a message's headers."""
    return _read(message, "headers") or []


def _read(message: Any, name: str) -> Any:
    found = getattr(message, name)
    return found() if callable(found) else found
