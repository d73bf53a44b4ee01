"""The server side of PLAIN (RFC 4616): one message with the user name and the password.

    [authorization id] NUL user name NUL password

Passwords come from two places: the users of a listener's `sasl.jaas.config`, and the SCRAM
credentials in the cluster's metadata, from which a password can be verified. A check takes the same
time for a user of either place and for an unknown one, unless a user has more iterations than the
default.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, Protocol

from millstream.model.principal import USER, Principal
from millstream.security.sasl.exchange import (
    SCRAM_MECHANISMS,
    Accepted,
    AuthenticationError,
    Identity,
    Mechanism,
    Step,
    Work,
)
from millstream.security.sasl.scram import ScramUser, is_password_valid

#: Longest user name or password, in bytes.
_TEXT_BYTES_MAX: Final = 4096


class PlainSource(Protocol):
    """Finds the SCRAM credentials of users."""

    def user(self, mechanism: Mechanism, name: str, /) -> ScramUser: ...


class PlainServer:
    """The server side of one exchange."""

    __slots__ = ("_source", "_users")

    def __init__(self, users: Mapping[str, str], source: PlainSource) -> None:
        #: Passwords by user name.
        self._users = users
        self._source = source

    def respond(self, message: bytes, /) -> Step:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationError("the message is not UTF-8") from None
        if len(parts) != 3:
            raise AuthenticationError(f"expected 3 parts, found {len(parts)}")
        authzid, user, password = parts
        if not user or not password:
            raise AuthenticationError("the user name or the password is empty")
        if max(len(user), len(password)) > _TEXT_BYTES_MAX:
            raise AuthenticationError("the user name or the password is too long")
        if authzid and authzid != user:
            raise AuthenticationError("the authorization id differs from the user name")
        return Work(lambda: self._verify(user, password))

    def _verify(self, user: str, password: str) -> Accepted:
        listed = self._users.get(user)
        # All checks run for every name, so that the time does not show which check knows the user.
        is_listed = hmac.compare_digest((listed or "").encode(), password.encode())
        is_valid = listed is not None and is_listed
        for mechanism in SCRAM_MECHANISMS:
            credential, identity = self._source.user(mechanism, user)
            is_known = is_password_valid(mechanism, credential, password)
            is_valid |= identity is not None and is_known
        if not is_valid:
            raise AuthenticationError(f"wrong user name or password (user {user!r})")
        return Accepted(b"", Identity(Principal(USER, user)))
