"""Settings of one listener: `listener.name.<listener>.<setting>`, as in Kafka. Pure.

Only settings whose definition says so (`is_per_listener`) have this form. The listener's name is in
lower case. The value for one listener takes precedence over the value for all listeners.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PREFIX: Final = "listener.name."


class ListenerSetting(NamedTuple):
    """A setting of one listener."""

    #: In lower case.
    listener: str
    #: The name without the prefix.
    name: str


def parse_listener_setting(name: str) -> ListenerSetting | None:
    """Split the name of a listener's setting; None if it has no prefix."""
    if not name.startswith(PREFIX):
        return None
    listener, dot, rest = name.removeprefix(PREFIX).partition(".")
    return ListenerSetting(listener, rest) if listener and dot and rest else None


def listener_setting(listener: str, name: str) -> str:
    """Return the name of a setting for one listener."""
    return f"{PREFIX}{listener.lower()}.{name}"
