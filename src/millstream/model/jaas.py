"""Parses `sasl.jaas.config`: a login module with options, in the syntax of Java's JAAS. Pure.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="secret" user_alice="alice-secret";

Values have double quotes, single quotes or none. The class name is not checked: the setting's
mechanism says which options count. In a broker's settings, `user_<name>` options of PLAIN are the
users that may log in, and `username` and `password` are the broker's own, for connections to other
brokers.
"""

from __future__ import annotations

import re
from typing import Final

_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_HEAD: Final = re.compile(r"\s*[\w.$]+\s+(?P<flag>\w+)")
_OPTION: Final = re.compile(
    r"""\s+(?P<name>[\w.\-]+)\s*=\s*
    (?:"(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)' | (?P<bare>[^\s;"']+))""",
    re.DOTALL | re.VERBOSE,
)
_END: Final = re.compile(r"\s*;?\s*\Z")
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
#: The characters of Java's `StreamTokenizer`. After a backslash, other characters are themselves.
_ESCAPED: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_USER_PREFIX: Final = "user_"
_EXPECTED: Final = (
    'a login module such as "<class> required username=\\"...\\" password=\\"...\\";"'
)


def parse_jaas(text: str) -> dict[str, str]:
    """Return the options of a login module. Raises ValueError with what is expected, and without
    the text, which has passwords."""
    head = _HEAD.match(text)
    if head is None or head["flag"].lower() not in _FLAGS:
        raise ValueError(_EXPECTED)
    options: dict[str, str] = {}
    position = head.end()
    while (found := _OPTION.match(text, position)) is not None:
        options[found["name"]] = _value(found)
        position = found.end()
    if not _END.match(text, position):
        raise ValueError(_EXPECTED)
    return options


def _value(option: re.Match[str]) -> str:
    if option["bare"] is not None:
        return option["bare"]
    quoted = option["single"] if option["double"] is None else option["double"]
    return _ESCAPE.sub(_unescaped, quoted)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)


def check_jaas(text: str) -> None:
    """Raise ValueError unless `text` can be parsed."""
    parse_jaas(text)


def plain_users(options: dict[str, str]) -> dict[str, str]:
    """Return the passwords of the users that PLAIN lets in, by name."""
    return {
        name.removeprefix(_USER_PREFIX): value
        for name, value in options.items()
        if name.startswith(_USER_PREFIX) and value
    }
