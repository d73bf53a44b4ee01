"""The server side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), and its credentials.

States: FIRST, then FINAL, then over.

    FIRST   the client names its user and a nonce; the challenge has salt, iterations, and the nonce
            with the server's part
    FINAL   the client must return exactly this nonce, its own GS2 header, and the proof

A source of credentials returns a credential for every name: an unknown user has one that no
password matches. So the challenge does not show whether a user exists.

The extension `tokenauth=true` (KIP-48) means that the user name is the id of a delegation token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from millstream.metadata.security_record import ScramCredential
from millstream.security.sasl.exchange import (
    Accepted,
    AuthenticationError,
    Challenge,
    Identity,
    Mechanism,
    Step,
    Work,
)
from millstream.security.sasl.scram_message import (
    ClientFirst,
    encode,
    format_server_first,
    parse_client_final,
    parse_client_first,
)

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
ITERATIONS_DEFAULT: Final = 4096

#: Bits of a salt that the broker or the client library makes, and the radix of its text.
_SALT_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_TOKEN_EXTENSION: Final = "tokenauth"  # noqa: S105

_HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}


class Shape(NamedTuple):
    """What a challenge shows of a credential, besides its salt."""

    iterations: int
    #: Length of a salt that is not text; 0 for the text of `make_salt`.
    salt_bytes: int


SHAPE_DEFAULT: Final = Shape(ITERATIONS_DEFAULT, 0)


class ScramUser(NamedTuple):
    """A credential and the identity of its user; None for a user that does not exist."""

    credential: ScramCredential
    identity: Identity | None


class ScramSource(Protocol):
    """Finds credentials."""

    def user(self, mechanism: Mechanism, name: str, /) -> ScramUser:
        """Return the credential of a user. An unknown user gets one that no password matches."""
        ...

    def token(self, mechanism: Mechanism, token_id: str, /) -> ScramUser:
        """Return the credential of a delegation token, like `user`. Derives keys: slow."""
        ...


class ScramServer:
    """The server side of one exchange."""

    __slots__ = (
        "_first",
        "_mechanism",
        "_nonce",
        "_server_first",
        "_server_nonce",
        "_source",
        "_user",
    )

    def __init__(self, mechanism: Mechanism, source: ScramSource, server_nonce: str) -> None:
        self._mechanism = mechanism
        self._source = source
        self._server_nonce = server_nonce
        self._first: ClientFirst | None = None
        #: The nonce of both sides, as the server sent it.
        self._nonce = ""
        self._server_first = ""
        self._user: ScramUser | None = None

    def respond(self, message: bytes, /) -> Step:
        if self._user is not None and self._first is not None:
            return self._finish(message, self._first, self._user)
        first = parse_client_first(message)
        if first.authzid and first.authzid != first.user:
            raise AuthenticationError("the authorization id differs from the user name")
        if first.extensions.get(_TOKEN_EXTENSION, "").lower() == "true":
            return Work(lambda: self._begin(first, self._source.token(self._mechanism, first.user)))
        return self._begin(first, self._source.user(self._mechanism, first.user))

    def _begin(self, first: ClientFirst, user: ScramUser) -> Challenge:
        credential = user.credential
        if credential.iterations < ITERATIONS_MIN:
            raise AuthenticationError(f"the credential of {first.user!r} has too few iterations")
        self._first, self._user = first, user
        self._nonce = first.nonce + self._server_nonce
        self._server_first = format_server_first(
            self._nonce, credential.salt, credential.iterations
        )
        return Challenge(self._server_first.encode())

    def _finish(self, message: bytes, first: ClientFirst, user: ScramUser) -> Accepted:
        final = parse_client_final(message)
        if final.header != first.header:
            raise AuthenticationError("the channel binding differs from the GS2 header")
        # The whole nonce counts: a client that may choose the server's part could replay an
        # exchange that it has seen.
        if not hmac.compare_digest(final.nonce.encode(), self._nonce.encode()):
            raise AuthenticationError("the nonce is not the one that the server sent")
        hash_name = _HASHES[self._mechanism]
        signed = f"{first.bare},{self._server_first},{final.unproved}".encode()
        is_proved = is_proof_valid(hash_name, user.credential, signed, final.proof)
        if user.identity is None or not is_proved:
            raise AuthenticationError(f"wrong user name or password (user {first.user!r})")
        signature = _mac(hash_name, user.credential.server_key, signed)
        return Accepted(f"v={encode(signature)}".encode(), user.identity)


def is_proof_valid(
    hash_name: str, credential: ScramCredential, signed: bytes, proof: bytes
) -> bool:
    """Return whether a client's proof shows that the client knows the password."""
    signature = _mac(hash_name, credential.stored_key, signed)
    if len(proof) != len(signature):
        return False
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    stored_key = hashlib.new(hash_name, client_key).digest()
    return hmac.compare_digest(stored_key, credential.stored_key)


def make_credential(
    mechanism: Mechanism, password: str, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive the credential of a password. Takes milliseconds."""
    salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


def credential_of(
    mechanism: Mechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a salted password."""
    hash_name = _HASHES[mechanism]
    client_key = _mac(hash_name, salted_password, b"Client Key")
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(hash_name, client_key).digest(),
        server_key=_mac(hash_name, salted_password, b"Server Key"),
        iterations=iterations,
    )


def is_password_valid(mechanism: Mechanism, credential: ScramCredential, password: str) -> bool:
    """Return whether a credential was derived from a password. Takes milliseconds."""
    found = make_credential(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


def make_salt(random_bits: Callable[[int], int]) -> bytes:
    """Return a salt. It is text, like the salts that Kafka's tools make."""
    number, digits = random_bits(_SALT_BITS), ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits.encode()


def shape_of(credential: ScramCredential) -> Shape:
    """Return what a challenge shows of a credential."""
    is_text = all(byte in _DIGITS.encode() for byte in credential.salt)
    return Shape(credential.iterations, 0 if is_text else len(credential.salt))


def fake_credential(
    mechanism: Mechanism, name: str, secret: bytes, shapes: Sequence[Shape] = (SHAPE_DEFAULT,)
) -> ScramCredential:
    """Return the credential of a user that does not exist: the same one each time.

    It has one of `shapes`, each as often as the others over many names. No password matches it, as
    its keys are not derived from one."""
    seed = _mac("sha512", secret, f"{mechanism} {name}".encode())
    size = hashlib.new(_HASHES[mechanism]).digest_size
    shape = shapes[int.from_bytes(seed[-8:]) * len(shapes) >> 64]
    salt = (
        hashlib.shake_256(seed).digest(shape.salt_bytes)
        if shape.salt_bytes
        else make_salt(lambda bits: int.from_bytes(seed) >> (8 * len(seed) - bits))
    )
    return ScramCredential(
        salt=salt,
        stored_key=_mac(_HASHES[mechanism], seed, b"stored")[:size],
        server_key=_mac(_HASHES[mechanism], seed, b"server")[:size],
        iterations=shape.iterations,
    )


def _mac(hash_name: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hash_name)
