"""The quotas of Kafka: their names, the entities that may have them, and their allowed values.

Entities are pairs of a type and a name (`QuotaEntity`). A user, a client id, or both together may
have byte rates, request time and mutations. An address may have a rate of connections.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from millstream.metadata.security_record import QuotaEntity
from millstream.model.sentinel import INT32_MAX, INT64_MAX

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

#: Names of entities are stored in keys, and repeated in metrics.
NAME_CHARACTERS_MAX: Final = 1024
#: As in Kafka, a whole number may differ from one by this much.
_FRACTION_MAX: Final = 1e-6


class QuotaName(StrEnum):
    """The quotas, by Kafka's names."""

    #: Bytes of Produce requests per second.
    PRODUCER_BYTE_RATE = "producer_byte_rate"
    #: Bytes of records in Fetch responses per second.
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    #: Time that the broker spends on requests, in percent of its event loop.
    REQUEST_PERCENTAGE = "request_percentage"
    #: Partitions created and deleted per second.
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    #: Connections accepted per second.
    CONNECTION_CREATION_RATE = "connection_creation_rate"


#: Quotas whose value is a whole number, with its maximum.
_WHOLE: Final[Mapping[str, int]] = {
    QuotaName.PRODUCER_BYTE_RATE: INT64_MAX,
    QuotaName.CONSUMER_BYTE_RATE: INT64_MAX,
    QuotaName.CONNECTION_CREATION_RATE: INT32_MAX,
}
_OF_CLIENTS: Final = (
    QuotaName.PRODUCER_BYTE_RATE,
    QuotaName.CONSUMER_BYTE_RATE,
    QuotaName.REQUEST_PERCENTAGE,
    QuotaName.CONTROLLER_MUTATION_RATE,
)
_OF_ADDRESSES: Final = (QuotaName.CONNECTION_CREATION_RATE,)


def make_entity(pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of pairs of a type and a name; None is the default of the type.

    Raises ValueError with a sentence for the client if the entity is not valid."""
    found: dict[str, str | None] = {}
    for kind, name in pairs:
        if kind not in ENTITY_TYPES:
            raise ValueError(f"there is no quota entity type {kind[:50]!r}: use {_listed()}")
        if kind in found:
            raise ValueError(f"the quota entity has two names of the type {kind}")
        if name is not None and not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise ValueError(
                f"the name of a {kind} has 1 to {NAME_CHARACTERS_MAX} characters; the default of"
                " the type has no name"
            )
        found[kind] = name
    if not found:
        raise ValueError(f"the quota entity is empty: name one of {_listed()}")
    if IP in found:
        if len(found) > 1:
            raise ValueError("an ip cannot be combined with a user or a client-id")
        found[IP] = _normal_address(found[IP])
    return tuple(sorted(found.items()))


def check_quota(entity: QuotaEntity, name: str, value: float | None) -> None:
    """Check a change of one quota; None removes it. Raises ValueError with a sentence."""
    is_address = any(kind == IP for kind, _ in entity)
    allowed = _OF_ADDRESSES if is_address else _OF_CLIENTS
    if name not in allowed:
        owner = "an ip" if is_address else "users and client ids"
        raise ValueError(f"there is no quota {name[:50]!r} for {owner}: use {', '.join(allowed)}")
    if value is None:
        return
    if not value > 0 or math.isinf(value):
        raise ValueError(f"{name} must be a number greater than 0")
    maximum = _WHOLE.get(name)
    if maximum is None:
        return
    if value > maximum:
        raise ValueError(f"{name} must be at most {maximum}")
    if value % 1 > _FRACTION_MAX:
        raise ValueError(f"{name} must be a whole number")


def _normal_address(name: str | None) -> str | None:
    """Return the address as connections show it. Names of hosts are not resolved."""
    if name is None:
        return None
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        raise ValueError(f"{name[:50]!r} is not an IP address") from None


def _listed() -> str:
    return ", ".join(ENTITY_TYPES)
