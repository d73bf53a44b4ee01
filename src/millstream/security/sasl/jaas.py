"""Parses `sasl.jaas.config`: a login module with options, in the syntax of Java's JAAS. Pure.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="secret" user_alice="alice-secret";

The class name is not checked: the setting's mechanism says which options count. `user_<name>`
options of PLAIN are the users that may log in. `username` and `password` are the broker's own,
for connections to other brokers.
"""

from __future__ import annotations

import re
from typing import Final

_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_HEAD: Final = re.compile(r"\s*[\w.$]+\s+(?P<flag>\w+)")
_OPTION: Final = re.compile(
    r"\s+(?P<name>[\w.\-]+)\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<bare>[^\s;\"]+))",
    re.DOTALL,
)
_END: Final = re.compile(r"\s*;?\s*\Z")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
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
        quoted = found["quoted"]
        value = found["bare"] if quoted is None else _ESCAPE.sub(r"\1", quoted)
        options[found["name"]] = value
        position = found.end()
    if not _END.match(text, position):
        raise ValueError(_EXPECTED)
    return options


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
