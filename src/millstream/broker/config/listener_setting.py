"""Settings of one listener: `listener.name.<listener>.<setting>`, as in Kafka. Pure.

Only settings whose definition says so (`is_per_listener`) have this form. The listener's name is in
lower case. The value for one listener takes precedence over the value for all listeners.

Some settings (`is_per_mechanism`) also have a form for one SASL mechanism of a listener:
`listener.name.<listener>.<mechanism>.<setting>`, with the mechanism in lower case.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.security.sasl.exchange import Mechanism

PREFIX: Final = "listener.name."
#: As they are written in names of settings.
_MECHANISMS: Final = tuple(mechanism.lower() for mechanism in Mechanism)


class ListenerSetting(NamedTuple):
    """A setting of one listener."""

    #: In lower case.
    listener: str
    #: The name without the prefix.
    name: str
    #: In lower case; None if the setting is for all mechanisms.
    mechanism: str | None = None


def parse_listener_setting(name: str) -> ListenerSetting | None:
    """Split the name of a listener's setting; None if it has no prefix."""
    if not name.startswith(PREFIX):
        return None
    listener, _, rest = name.removeprefix(PREFIX).partition(".")
    mechanism, _, of_mechanism = rest.partition(".")
    if not listener or not rest:
        return None
    if mechanism in _MECHANISMS and of_mechanism:
        return ListenerSetting(listener, of_mechanism, mechanism)
    return ListenerSetting(listener, rest)


def listener_setting(listener: str, name: str, mechanism: str | None = None) -> str:
    """Return the name of a setting for one listener, or for one mechanism of it."""
    middle = "" if mechanism is None else f"{mechanism.lower()}."
    return f"{PREFIX}{listener.lower()}.{middle}{name}"


def variable_setting(listener: str, name: str) -> str:
    """Return the name of a setting whose listener comes from an environment variable.

    The variable has underscores for dots, so its listener may end with a mechanism."""
    for mechanism in _MECHANISMS:
        suffix = "_" + mechanism.replace("-", "_")
        if listener.lower().endswith(suffix) and len(listener) > len(suffix):
            return listener_setting(listener[: -len(suffix)], name, mechanism)
    return listener_setting(listener, name)
