"""The records of users, ACLs, quotas and delegation tokens, and their keys and values in the store.

Keys and values (JSON):
    users/<name>                        {mechanism: {"salt", "stored_key", "server_key",
                                         "iterations"}}; bytes are in base64
    acls/<resource>/<pattern>/<name>    [[principal, host, operation, permission]]
    quotas/<entity>                     {quota name: value}; see `quota_key`
    tokens/<id>                         a delegation token
A key exists only while its value has content.

No record holds a password. A SCRAM credential is derived from one by PBKDF2, and the HMAC of a
delegation token is computed from its id with the secret key of the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from millstream.model.map import Map

USERS: Final = "users/"
ACLS: Final = "acls/"
QUOTAS: Final = "quotas/"
TOKENS: Final = "tokens/"


class ScramCredential(msgspec.Struct, frozen=True, gc=False):
    """What the broker stores of a user's password, for one mechanism (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class AclResource(msgspec.Struct, frozen=True, gc=False):
    """A resource pattern: the numbers of the protocol for type and pattern type, and the name."""

    resource_type: int
    pattern_type: int
    name: str


class AclEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One rule of a resource pattern; the numbers are the protocol's."""

    principal: str
    host: str
    operation: int
    permission: int


class TokenRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A delegation token (KIP-48). Times are in milliseconds since the epoch."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    #: The owner's groups, without the kind, when it created the token itself.
    groups: tuple[str, ...] = ()
    issued_ms: int
    expiry_ms: int
    expiry_ms_max: int


Credentials: TypeAlias = Map[str, ScramCredential]
#: Pairs of an entity type (`user`, `client-id`, `ip`) and a name, sorted by type. None is the
#: default of the type.
QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
Quotas: TypeAlias = Map[str, float]

_encode = msgspec.json.Encoder().encode
_decode_credentials = msgspec.json.Decoder(dict[str, ScramCredential]).decode
_decode_acls = msgspec.json.Decoder(tuple[AclEntry, ...]).decode
_decode_quotas = msgspec.json.Decoder(dict[str, float]).decode
decode_token = msgspec.json.Decoder(TokenRecord).decode


def user_key(name: str) -> str:
    return USERS + name


def acl_key(resource: AclResource) -> str:
    return f"{ACLS}{resource.resource_type}/{resource.pattern_type}/{resource.name}"


def parse_acl_key(key: str) -> AclResource:
    resource_type, pattern_type, name = key.removeprefix(ACLS).split("/", 2)
    return AclResource(int(resource_type), int(pattern_type), name)


def quota_key(entity: QuotaEntity) -> str:
    """Return the key of an entity: `quotas/client-id=app/user`, where `user` alone is a default."""
    parts = (
        kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in sorted(entity)
    )
    return QUOTAS + "/".join(parts)


def parse_quota_key(key: str) -> QuotaEntity:
    pairs = (part.partition("=") for part in key.removeprefix(QUOTAS).split("/"))
    return tuple((kind, unquote(name) if equals else None) for kind, equals, name in pairs)


def token_key(token_id: str) -> str:
    return TOKENS + token_id


def encode_credentials(credentials: Mapping[str, ScramCredential]) -> bytes:
    return _encode(dict(credentials))


def decode_credentials(value: bytes) -> Credentials:
    return Map(_decode_credentials(value))


def encode_acls(entries: Iterable[AclEntry]) -> bytes:
    return _encode(tuple(entries))


def decode_acls(value: bytes) -> tuple[AclEntry, ...]:
    return _decode_acls(value)


def encode_quotas(quotas: Mapping[str, float]) -> bytes:
    return _encode(dict(quotas))


def decode_quotas(value: bytes) -> Quotas:
    return Map(_decode_quotas(value))


def encode_token(token: TokenRecord) -> bytes:
    return _encode(token)
