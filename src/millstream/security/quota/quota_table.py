"""Finds the quota that applies to a client: the most specific one, in Kafka's order.

    1  the user with the client id          5  default user, default client id
    2  the user, default client id          6  default user
    3  the user                             7  the client id
    4  default user with the client id      8  default client id

Each quota is looked up on its own. All clients to which the same quota of a user applies share it
(3 and 6: all client ids of one user). For the quotas of client ids (7, 8), all users of a client id
share it. For the others, each pair of user and client id has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from millstream.metadata.security_record import QuotaEntity, Quotas
from millstream.security.quota.quota_type import CLIENT_ID, IP, USER, QuotaName

#: The user and the client id that share a quota; None is "any".
Scope: TypeAlias = tuple[str | None, str | None]


class Limit(NamedTuple):
    """A quota's value, and who shares it."""

    value: float
    scope: Scope


class QuotaTable:
    """All quotas of the cluster. Immutable."""

    __slots__ = ("_quotas",)

    def __init__(self, quotas: Mapping[QuotaEntity, Quotas]) -> None:
        self._quotas = quotas

    @property
    def has_client_quotas(self) -> bool:
        """Whether any user or client id has a quota."""
        return any(kind != IP for entity in self._quotas for kind, _ in entity)

    @property
    def has_address_quotas(self) -> bool:
        return any(kind == IP for entity in self._quotas for kind, _ in entity)

    def find(self, quota: QuotaName, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client; None if the client has none."""
        for entity, scope in _candidates(user, client_id):
            found = self._quotas.get(entity)
            if found is not None and quota in found:
                return Limit(found[quota], scope)
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return the connections per second that an address may create; None is no limit."""
        for name in (address, None):
            found = self._quotas.get(((IP, name),))
            if found is not None and QuotaName.CONNECTION_CREATION_RATE in found:
                return found[QuotaName.CONNECTION_CREATION_RATE]
        return None


def _candidates(user: str, client_id: str) -> tuple[tuple[QuotaEntity, Scope], ...]:
    pair: Scope = (user, client_id)
    of_user: Scope = (user, None)
    of_client: Scope = (None, client_id)
    # Entities are sorted by type: the client id comes first.
    return (
        (((CLIENT_ID, client_id), (USER, user)), pair),
        (((CLIENT_ID, None), (USER, user)), pair),
        (((USER, user),), of_user),
        (((CLIENT_ID, client_id), (USER, None)), pair),
        (((CLIENT_ID, None), (USER, None)), pair),
        (((USER, None),), of_user),
        (((CLIENT_ID, client_id),), of_client),
        (((CLIENT_ID, None),), of_client),
    )
