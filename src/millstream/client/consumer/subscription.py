"""What a consumer is subscribed to: topics by name, or all topics that match a pattern. Pure.

A pattern is a regular expression of Python that matches the whole name. librdkafka passes it to the
C library, and with the group protocol `consumer` to the broker, which use other dialects.
`portable` rewrites a pattern to the part that all of them share, and rejects the rest: a pattern
never means different things to different group members.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.client.error import UsageError

#: Topics of the brokers. No pattern matches them.
INTERNAL_PREFIX: Final = "__"
#: librdkafka's property value that hides internal topics.
HIDES_INTERNAL: Final = f"^{INTERNAL_PREFIX}.*"

_CLASSES: Final = {"d": "0-9", "w": "A-Za-z0-9_"}
_SPECIAL: Final = frozenset(".[](){}*+?|^$\\")
_QUANTIFIERS: Final = frozenset("*+?}")


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by name, or a pattern."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    @property
    def names(self) -> list[str]:
        """The subscription as librdkafka takes it. A name that starts with ^ is a pattern."""
        if self.pattern is not None:
            return [f"^({portable(self.pattern)})$"]
        return list(self.topics)

    @property
    def only_topic(self) -> str | None:
        """The topic of all records, if there is only one."""
        is_one = len(self.topics) == 1 and not self.topics[0].startswith("^")
        return self.topics[0] if is_one else None

    @property
    def has_internal(self) -> bool:
        """Whether internal topics are among the names."""
        return any(each.startswith(INTERNAL_PREFIX) for each in self.topics)

    def matching(self, topics: Sequence[str]) -> list[str]:
        """Return the topics that the pattern matches."""
        assert self.pattern is not None
        is_match = re.compile(self.pattern).fullmatch
        return [each for each in topics if is_match(each) and not each.startswith(INTERNAL_PREFIX)]


def subscription_of(
    topics: Sequence[str] | None, pattern: str | re.Pattern[str] | None
) -> Subscription | None:
    """Return the subscription for these arguments, or raise. None: nothing is subscribed yet."""
    if topics is not None and pattern is not None:
        raise UsageError("Pass topics or pattern, not both.")
    if pattern is not None:
        return Subscription(pattern=_pattern_of(pattern))
    return None if topics is None else Subscription(tuple(topics_of(topics)))


def topics_of(topics: Sequence[str]) -> list[str]:
    """Return the topics as a list, or raise."""
    if isinstance(topics, str) and topics:
        raise UsageError(f"topics={topics!r} is a string: pass a list of names, ['{topics}'].")
    if isinstance(topics, str | bytes) or not topics:
        raise UsageError(f"topics={topics!r}: pass a list of names, for example ['orders'].")
    listed = list(topics)
    for each in listed:
        if not isinstance(each, str):
            raise UsageError(f"topics={topics!r}: {each!r} is not a string; pass names as strings.")
    return listed


def _pattern_of(pattern: str | re.Pattern[str]) -> str:
    if isinstance(pattern, re.Pattern):
        if pattern.flags & ~re.UNICODE:
            raise UsageError(f"pattern={pattern!r} has flags: write the pattern without them.")
        pattern = pattern.pattern
    if not isinstance(pattern, str) or not pattern:
        raise UsageError(
            f"pattern={pattern!r}: pass a regular expression, for example 'orders-.*'."
        )
    if "[[" in pattern:
        raise _not_portable(pattern, "[[")
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"pattern={pattern!r} is not a regular expression: {error}.") from error
    portable(pattern)
    return pattern


def portable(pattern: str) -> str:
    """Return the pattern in the common part of Python's, POSIX's and RE2's dialects, or raise."""
    return "".join(_rewritten(pattern))


def _rewritten(pattern: str) -> Iterator[str]:
    at, previous = 0, ""
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            yield _escaped(pattern, pattern[at + 1])
            at += 2
        elif character == "[":
            end = _class_end(pattern, at)
            yield _class(pattern, pattern[at + 1 : end])
            at = end + 1
        elif pattern.startswith("(?", at):
            yield "("
            at = _group_start(pattern, at)
        else:
            if character in "?+" and previous in _QUANTIFIERS:
                raise _not_portable(pattern, f"{previous}{character}")
            yield character
            at += 1
        previous = "" if character == "\\" else character


def _escaped(pattern: str, character: str) -> str:
    if character in _CLASSES:
        return f"[{_CLASSES[character]}]"
    if character.isalnum():
        raise _not_portable(pattern, f"\\{character}")
    return f"\\{character}" if character in _SPECIAL else character


def _group_start(pattern: str, at: int) -> int:
    """Return where the content of a group begins that starts with "(?" at `at`."""
    match = re.compile(r"\(\?(:|P<\w+>)").match(pattern, at)
    if match is None:
        raise _not_portable(pattern, pattern[at : at + 3])
    return match.end()


def _class_end(pattern: str, at: int) -> int:
    """Return the index of the "]" that ends the class that starts at `at`."""
    end = at + 1 + pattern.startswith("^", at + 1)
    end += pattern.startswith("]", end)
    while pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return end


def _class(pattern: str, content: str) -> str:
    """Return a class of characters. POSIX knows no escapes in it, and a literal "-" comes last."""
    negation = "^" if content.startswith("^") else ""
    last = ""
    found = []
    at = len(negation)
    while at < len(content):
        character = content[at]
        if character == "\\":
            at += 1
            character = content[at]
            if character in _CLASSES:
                character = _CLASSES[character]
            elif character == "-":
                character, last = "", "-"
            elif character not in "._":
                raise _not_portable(pattern, f"[\\{character}]")
        found.append(character)
        at += 1
    return f"[{negation}{''.join(found)}{last}]"


def _not_portable(pattern: str, part: str) -> UsageError:
    return UsageError(
        f"pattern={pattern!r}: {part!r} does not mean the same to Python, librdkafka and brokers. "
        "Use names, '.', '*', '+', '?', '|', groups, {m,n}, classes such as [a-z], \\d and \\w."
    )
