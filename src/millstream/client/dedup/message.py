"""What dedup reads of a message: a `Record` or a `Job` of ours, or one of confluent-kafka's, where
everything is a method."""

from __future__ import annotations

from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a message is."""

    topic: str
    partition: int
    offset: int


def place_of(message: Any) -> Place:
    return Place(*(_read(message, name) for name in Place._fields))


def headers_of(message: Any) -> list[tuple[str, bytes | str | None]]:
    return _read(message, "headers") or []


def _read(message: Any, name: str) -> Any:
    found = getattr(message, name)
    return found() if callable(found) else found
