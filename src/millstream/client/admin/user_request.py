"""Requests about users with SCRAM credentials, sent by Millstream's own protocol client.

A password never leaves this process: the client derives the salted password, and the broker stores
only the keys of SCRAM.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from millstream.client.admin.handle import AdminHandle
from millstream.client.admin.protocol_request import connected, rejection
from millstream.client.admin.result import ScramMechanism
from millstream.client.connection import one_of
from millstream.client.error import UsageError
from millstream.model.error import ErrorCode
from millstream.protocol.cluster_client import ClusterClient
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

SCRAM_MECHANISMS: Final[tuple[ScramMechanism, ...]] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: Kafka's default, and the smallest number that brokers accept.
ITERATIONS_DEFAULT: Final = 4096

#: The numbers of the protocol.
_TYPES: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final[Mapping[int, ScramMechanism]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_DIGITS: Final = 26

#: Iterations by mechanism, of one user.
Credentials: TypeAlias = dict[ScramMechanism, int]


def list_users(handle: AdminHandle, timeout: float) -> dict[str, Credentials]:
    """Return the users of the cluster."""
    with connected(handle, "Listing users", timeout) as cluster:
        return _describe(cluster)


def create_user(
    handle: AdminHandle,
    name: str,
    password: str,
    mechanisms: Sequence[ScramMechanism],
    iterations: int,
    timeout: float,
) -> None:
    """Create a user. Raises BrokerError if the user exists."""
    what = f"Creating user {name!r}"
    upsertions = _upsertions(name, password, mechanisms, iterations)
    with connected(handle, what, timeout) as cluster:
        if name in _describe(cluster):
            raise rejection(ErrorCode.DUPLICATE_RESOURCE, what, "the user exists")
        _alter(cluster, what, upsertions=upsertions)


def alter_user(
    handle: AdminHandle, name: str, password: str, iterations: int | None, timeout: float
) -> None:
    """Change the password of a user, for all mechanisms that the user has."""
    what = f"Changing the password of user {name!r}"
    with connected(handle, what, timeout) as cluster:
        present = _present(cluster, name, what)
        upsertions = [
            each
            for mechanism, count in present.items()
            for each in _upsertions(name, password, [mechanism], iterations or count)
        ]
        _alter(cluster, what, upsertions=upsertions)


def delete_user(handle: AdminHandle, name: str, timeout: float) -> None:
    """Delete a user with all credentials."""
    what = f"Deleting user {name!r}"
    with connected(handle, what, timeout) as cluster:
        deletions = [
            AlterUserScramCredentialsRequest.Deletion(name=name, mechanism=_TYPES[mechanism])
            for mechanism in _present(cluster, name, what)
        ]
        _alter(cluster, what, deletions=deletions)


def _present(cluster: ClusterClient, name: str, what: str) -> Credentials:
    present = _describe(cluster).get(name)
    if present is None:
        raise rejection(ErrorCode.RESOURCE_NOT_FOUND, what, "the user does not exist")
    return present


def _describe(cluster: ClusterClient) -> dict[str, Credentials]:
    response = cluster.attempt(
        "list users",
        lambda: cluster.any_connection().call(
            DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse
        ),
    )
    if response.error_code:
        raise rejection(response.error_code, "Listing users", response.error_message)
    return {
        row.user: {_NAMES[info.mechanism]: info.iterations for info in row.credential_infos}
        for row in response.results
        if not row.error_code
    }


def _alter(
    cluster: ClusterClient,
    what: str,
    *,
    upsertions: Iterable[AlterUserScramCredentialsRequest.Upsertion] = (),
    deletions: Iterable[AlterUserScramCredentialsRequest.Deletion] = (),
) -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=list(deletions), upsertions=list(upsertions)
    )
    response = cluster.attempt(
        "alter users",
        lambda: cluster.any_connection().call(request, AlterUserScramCredentialsResponse),
    )
    for row in response.results:
        if row.error_code:
            raise rejection(row.error_code, what, row.error_message)


def _upsertions(
    name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
) -> list[AlterUserScramCredentialsRequest.Upsertion]:
    if not name or not password:
        raise UsageError("A user needs a name and a password.")
    found = []
    for mechanism in dict.fromkeys(mechanisms):
        one_of("mechanism", mechanism, SCRAM_MECHANISMS)
        salt = "".join(secrets.choice(_DIGITS) for _ in range(_SALT_DIGITS)).encode()
        salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)
        found.append(
            AlterUserScramCredentialsRequest.Upsertion(
                name=name,
                mechanism=_TYPES[mechanism],
                iterations=iterations,
                salt=salt,
                salted_password=salted,
            )
        )
    return found
