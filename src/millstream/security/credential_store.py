"""Finds credentials of users and delegation tokens in the cluster's metadata. No I/O.

A user or token that does not exist gets a credential that no password matches, derived from its
name and a secret of the cluster. The secret is random, so that nobody can compute the credential;
it is the same on all brokers, so that repeated attempts get the same challenge. Tools make salts of
different lengths, and operators choose the iterations. So unknown users have salts and iterations
like those of the users that exist, in the same shares, and cost the same work.

Safe to call from any thread: images are immutable.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millstream.metadata.image import ClusterImage
from millstream.metadata.security_record import Credentials, ScramCredential, TokenRecord
from millstream.model.principal import USER, Principal, parse_principal
from millstream.security.sasl.exchange import Identity, Mechanism
from millstream.security.sasl.scram import (
    ITERATIONS_MIN,
    SHAPE_DEFAULT,
    ScramUser,
    Shape,
    fake_credential,
    make_credential,
    shape_of,
)

#: Derived credentials of tokens have salts of this length.
_TOKEN_SHAPES: Final = (Shape(ITERATIONS_MIN, 32),)
#: Number of derived token credentials that are kept.
_TOKENS_MAX: Final = 1000


class CredentialStore:
    """The credentials in the metadata of one cluster."""

    __slots__ = ("_image", "_shapes", "_token_secret", "_tokens", "_wall_ms", "fake_secret")

    def __init__(
        self,
        image: Callable[[], ClusterImage],
        wall_ms: Callable[[], int],
        *,
        fake_secret: bytes = b"",
        token_secret: str | None = None,
    ) -> None:
        self._image = image
        self._wall_ms = wall_ms
        #: The secret of the cluster; set before the first login.
        self.fake_secret = fake_secret
        #: `delegation.token.secret.key`; None if this cluster has no delegation tokens.
        self._token_secret = token_secret
        self._tokens: dict[tuple[Mechanism, str], ScramCredential] = {}
        #: By mechanism, users and the shapes of their credentials.
        self._shapes: dict[Mechanism, tuple[Mapping[str, Credentials], Sequence[Shape]]] = {}

    def user(self, mechanism: Mechanism, name: str, /) -> ScramUser:
        """Return the credential of a user; one that no password matches if there is none."""
        users = self._image().users
        # Made for every name: the time says nothing about whether the user exists.
        fake = fake_credential(mechanism, name, self.fake_secret, self._shapes_of(mechanism, users))
        credentials = users.get(name)
        found = None if credentials is None else credentials.get(mechanism)
        if found is None:
            return ScramUser(fake, None)
        return ScramUser(found, Identity(Principal(USER, name)))

    def _shapes_of(self, mechanism: Mechanism, users: Mapping[str, Credentials]) -> Sequence[Shape]:
        """Return the shapes of all credentials, sorted, so that all brokers have the same order."""
        kept = self._shapes.get(mechanism)
        if kept is not None and kept[0] is users:
            return kept[1]
        found = [each[mechanism] for each in users.values() if mechanism in each]
        shapes = sorted(map(shape_of, found)) or [SHAPE_DEFAULT]
        self._shapes[mechanism] = (users, shapes)
        return shapes

    def token(self, mechanism: Mechanism, token_id: str, /) -> ScramUser:
        """Return the credential of a delegation token, like `user`. Derives keys: slow."""
        record = self._image().tokens.get(token_id)
        secret = self._token_secret
        if record is None or secret is None or record.expiry_ms <= self._wall_ms():
            fake = fake_credential(mechanism, token_id, self.fake_secret, _TOKEN_SHAPES)
            return ScramUser(fake, None)
        return ScramUser(
            self._token_credential(mechanism, token_id, secret), token_identity(record)
        )

    def _token_credential(
        self, mechanism: Mechanism, token_id: str, secret: str
    ) -> ScramCredential:
        key = (mechanism, token_id)
        found = self._tokens.get(key)
        if found is None:
            password = base64.b64encode(token_hmac(secret, token_id)).decode()
            salt = hmac.digest(secret.encode(), f"salt {mechanism} {token_id}".encode(), "sha256")
            found = make_credential(mechanism, password, salt, ITERATIONS_MIN)
            while len(self._tokens) >= _TOKENS_MAX:
                self._tokens.pop(next(iter(self._tokens)), None)
            self._tokens[key] = found
        return found


def token_hmac(secret: str, token_id: str) -> bytes:
    """Return the HMAC of a delegation token, whose base64 is the password of the token."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def token_identity(record: TokenRecord) -> Identity:
    """Return the identity of a client that has logged in with a token: its owner."""
    return Identity(
        parse_principal(record.owner),
        expires_ms=record.expiry_ms,
        is_token=True,
        groups=record.groups,
    )
