"""Client properties by their Kafka names, parsed one at a time."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.protocol.error import SettingError


class ClientProperties:
    """A set of properties that shrinks: each `pop` removes one, so `remaining` holds the unread.

    `prefix` is the text before each name where the user writes it, such as `kafka.` in Spark's
    options. Error messages include it.
    """

    __slots__ = ("prefix", "remaining")

    def __init__(self, properties: Mapping[str, str], prefix: str = "") -> None:
        self.prefix = prefix
        self.remaining = dict(properties)

    @classmethod
    def from_options(cls, options: Mapping[str, str], prefix: str) -> ClientProperties:
        """Return the options that start with `prefix`, without it."""
        chosen = {
            name[len(prefix) :]: value for name, value in options.items() if name.startswith(prefix)
        }
        return cls(chosen, prefix)

    def pop(self, name: str, default: str | None = None) -> str | None:
        """Remove a property and return its text."""
        return self.remaining.pop(name, default)

    def pop_text(self, name: str, default: str) -> str:
        """Remove a property that always has a value, and return its text."""
        return self.remaining.pop(name, default)

    def pop_number(self, name: str, default: int, minimum: int) -> int:
        """Remove a property and return its whole number. Raises SettingError below `minimum`."""
        text = self.remaining.pop(name, None)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise SettingError(
                f"{self.prefix}{name} must be a whole number from {minimum} on, not {text!r}"
            )
        return number

    def pop_choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Remove a property and return the choice it names, in any case. Raises SettingError."""
        text = self.remaining.pop(name, default)
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise SettingError(f"{self.prefix}{name} must be one of {', '.join(choices)}, not {text!r}")
