"""Validates OAuth access tokens that are signed JWTs (RFC 7519, RFC 9068). Blocks for keys only.

A token must have a valid signature of a key in the key set, by one of `ALGORITHMS`; `none` and
symmetric algorithms are never accepted. It must have the expected issuer, one of the expected
audiences, the times of its issue and expiry, and a subject. Times may differ by the clock skew. A
token with more than `GROUPS_MAX` groups is not valid: ACLs may deny something to any of them.
Parameters of the header that are not known are ignored (RFC 7515), unless the header says that they
are critical.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from millstream.model.principal import USER, Principal
from millstream.security.oauth.key_source import KeySource
from millstream.security.sasl.exchange import AuthenticationError, Identity

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
)
GROUPS_MAX: Final = 1000
#: Some issuers put a chain of certificates into the header.
_HEADER_LENGTH_MAX: Final = 16 * 1024
#: Later times are reduced to this one: JSON's numbers have no limit, the protocol's have one.
_TIME_S_MAX: Final = 2.0**42


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must have."""

    issuer: str
    audiences: tuple[str, ...]
    clock_skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    groups_claim: str = "groups"
    scopes: tuple[str, ...] = ()


class TokenValidator:
    """Validates the tokens of one issuer. Thread-safe."""

    __slots__ = ("_keys", "_rules", "_wall_ms")

    def __init__(self, keys: KeySource, rules: TokenRules, wall_ms: Callable[[], int]) -> None:
        self._keys = keys
        self._rules = rules
        self._wall_ms = wall_ms

    def validate(self, token: str) -> Identity:
        """Return the identity that a token proves. Raises AuthenticationError."""
        header = parse_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise AuthenticationError(f"the token is signed by {algorithm!r}, which is not allowed")
        if key_id is not None and not isinstance(key_id, str):
            raise AuthenticationError("the token's key id is not text")
        key = self._keys.find(key_id)
        try:
            claims = jwt.decode(token, key, registry=_REGISTRY).claims
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise AuthenticationError(f"the token's signature is invalid: {error}") from None
        return self._identity(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        rules = self._rules
        expires_s = self._check_times(claims)
        if claims.get("iss") != rules.issuer:
            raise AuthenticationError(f"the token has the issuer {claims.get('iss')!r}")
        audiences = _texts(claims.get("aud"), is_split=False)
        if not set(audiences) & set(rules.audiences):
            raise AuthenticationError(f"the token has the audience {claims.get('aud')!r}")
        missing = set(rules.scopes) - set(_texts(claims.get(rules.scope_claim), is_split=True))
        if missing:
            raise AuthenticationError(f"the token lacks the scope {', '.join(sorted(missing))}")
        subject = claims.get(rules.subject_claim)
        if not isinstance(subject, str) or not subject.strip() or not subject.isprintable():
            raise AuthenticationError(f"the token has no claim {rules.subject_claim!r} with a name")
        groups = tuple(_texts(claims.get(rules.groups_claim), is_split=False))
        if len(groups) > GROUPS_MAX:
            raise AuthenticationError(f"the token has {len(groups)} groups, more than {GROUPS_MAX}")
        return Identity(
            Principal(USER, subject),
            expires_ms=int((expires_s + rules.clock_skew_s) * 1000),
            groups=groups,
        )

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        """Return the time of expiry, in seconds since the epoch."""
        now_s, skew_s = self._wall_ms() / 1000, self._rules.clock_skew_s
        expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
        if expires_s is None or issued_s is None:
            raise AuthenticationError("the token lacks the time of its issue or expiry")
        valid_from_s = _time(claims, "nbf")
        if now_s >= expires_s + skew_s:
            raise AuthenticationError("the token has expired")
        starts_s = issued_s if valid_from_s is None else max(issued_s, valid_from_s)
        if now_s < starts_s - skew_s:
            raise AuthenticationError("the token is not valid yet")
        return expires_s


def _registry() -> JWSRegistry:
    found = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    found.max_header_length = _HEADER_LENGTH_MAX
    return found


_REGISTRY: Final = _registry()


def parse_header(token: str) -> dict[str, Any]:
    """Return the header of a JWT, whose signature is not checked. Raises AuthenticationError."""
    encoded, dot, _ = token.partition(".")
    try:
        data = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        header = json.loads(data)
    except (binascii.Error, ValueError, RecursionError):
        header = None
    if not dot or not isinstance(header, dict):
        raise AuthenticationError("the token is not a JWT")
    return header


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AuthenticationError(f"the token's claim {name!r} is not a time")
    return min(float(value), _TIME_S_MAX)


def _texts(value: Any, *, is_split: bool) -> list[str]:
    if isinstance(value, str):
        return value.split() if is_split else [value]
    if isinstance(value, list):
        return [each for each in value if isinstance(each, str)]
    return []
