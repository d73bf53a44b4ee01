"""What all SASL mechanisms have in common: names, steps, the authenticated identity, and the error.

An exchange belongs to one login. `respond` takes one message of the client and returns a step:

    Challenge   send the data, and expect another message
    Accepted    send the data; the client is authenticated
    Work        call `run` outside of the event loop: it returns a Challenge or Accepted

`respond` and `run` raise AuthenticationError and nothing else. After an error or Accepted the
exchange is over. A Work must end before the next message is given to its exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from millstream.model.principal import Principal


class Mechanism(StrEnum):
    """The mechanisms that a broker supports, by their registered names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


SCRAM_MECHANISMS: Final = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


class AuthenticationError(Exception):
    """The login failed. The reason is for the broker's log.

    The client gets one text for all reasons, so that it cannot tell an unknown user from a wrong
    password."""


class Identity(NamedTuple):
    """An authenticated client."""

    principal: Principal
    #: When the credential expires, in milliseconds since the epoch; None if it does not.
    expires_ms: int | None = None
    #: Whether the client logged in with a delegation token.
    is_token: bool = False
    #: The groups that an OAuth token names, without the kind.
    groups: tuple[str, ...] = ()


class Challenge(NamedTuple):
    """The next message to the client."""

    data: bytes


class Accepted(NamedTuple):
    """The last message to the client, which is authenticated."""

    data: bytes
    identity: Identity


class Work(NamedTuple):
    """A step that takes long: key derivation, or waiting for keys."""

    run: Callable[[], Challenge | Accepted]


Step: TypeAlias = Challenge | Accepted | Work


class Exchange(Protocol):
    """The server side of one login."""

    def respond(self, message: bytes, /) -> Step:
        """Handle one message of the client. Raises AuthenticationError."""
        ...
