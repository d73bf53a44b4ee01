"""Mapping rules from the distinguished names of certificates to names of users. Pure.

A list of rules, as in Kafka's `ssl.principal.mapping.rules`:
    DEFAULT                            the whole distinguished name
    RULE:pattern/replacement/          the replacement, if the pattern matches the whole name
    RULE:pattern/replacement/L         the same in lower case; U for upper case
The first rule that matches decides. `$1` in a replacement is the first group of the pattern. A `/`
inside a pattern or a replacement is written `\\/`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DEFAULT_RULES: Final = "DEFAULT"

_PART: Final = r"((?:\\.|[^\\/])*)"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?))?\s*(?:,\s*|\Z)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)")
_ALLOWED: Final = "DEFAULT, or rules such as RULE:^CN=(.*?),.*$/$1/L, separated by commas"


class UnmappedNameError(ValueError):
    """No rule matches a distinguished name."""


class _Rule(NamedTuple):
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the user's name; None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = self.pattern.sub(self._expand, name)
        return {"L": found.lower(), "U": found.upper()}.get(self.case, found)

    def _expand(self, match: re.Match[str]) -> str:
        return _REFERENCE.sub(lambda reference: _value(reference, match), self.replacement)


def _value(reference: re.Match[str], match: re.Match[str]) -> str:
    """Return the text for `$12`, or for an escaped character, in a replacement. As in Kafka, a
    number above the count of groups is shortened: `$12` is then group 1 and the text `2`. If no
    group has the shortened number, the text does not change."""
    if reference[1] is not None:
        return reference[1]
    digits = reference[2]
    for count in range(len(digits), 0, -1):
        if int(digits[:count]) <= len(match.groups()):
            return (match[int(digits[:count])] or "") + digits[count:]
    return reference[0]


class PrincipalMapping:
    """The rules of one listener."""

    __slots__ = ("_rules", "_text")

    def __init__(self, text: str = DEFAULT_RULES) -> None:
        """Parse rules. Raises ValueError with what is allowed."""
        self._text = text
        self._rules = _parse(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrincipalMapping) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def name_of(self, distinguished_name: str) -> str:
        """Return the name of the user. Raises UnmappedNameError."""
        for rule in self._rules:
            found = rule.apply(distinguished_name)
            if found is not None:
                return found
        raise UnmappedNameError(
            f"no rule of ssl.principal.mapping.rules matches {distinguished_name!r}"
        )


def _parse(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ValueError(_ALLOWED)
        if match[1]:
            rules.append(_Rule())
        elif match[2] is not None:
            try:
                rules.append(_Rule(re.compile(match[2]), match[3], match[4]))
            except re.error as error:
                raise ValueError(
                    f"{_ALLOWED}; {match[2]!r} is not a regular expression: {error}"
                ) from error
        position = match.end()
    return rules


def check_rules(text: str) -> None:
    """Raise ValueError with what is allowed."""
    PrincipalMapping(text)
