"""Who a client is: principals in Kafka's text form, `User:alice`. No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
#: The kind of the principals of groups, in ACLs and `super.users`.
GROUP: Final = "Group"
WILDCARD_PRINCIPAL: Final = "User:*"


class Principal(NamedTuple):
    """The identity of an authenticated client, or `ANONYMOUS`."""

    kind: str
    name: str
    #: The groups of the client, in text form (`Group:developers`). No part of the text form.
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


#: The client of a connection without authentication.
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """Parse `User:alice`. Raises ValueError with what is expected."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError("a principal such as User:alice")
    return Principal(kind, name)
