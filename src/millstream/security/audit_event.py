"""Events of the audit trail, and the interface through which parts of the broker record them.

An event never holds a secret: no password, no token, and no value of a sensitive setting.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

#: The topic that holds the events, in JSON, by principal.
AUDIT_TOPIC: Final = "__audit"
#: The outcome of what succeeded.
OK: Final = "ok"


class AuditKind(StrEnum):
    """What an event is about."""

    AUTHENTICATION = "authentication"
    #: A request that the authorizer denied.
    DENIAL = "denial"
    #: A change of topics, configs, ACLs, users, quotas, groups, transactions or the cluster.
    CHANGE = "change"


class AuditEvent(NamedTuple):
    """One line of the audit trail."""

    kind: AuditKind
    #: The API's name; for an authentication the SASL mechanism, or TLS for a certificate.
    action: str
    principal: str
    address: str
    client_id: str
    #: Such as `topic:orders` or `user:alice`; empty if the event has none.
    resource: str
    #: `ok`, or the name of the error code; for a rejected certificate the kind of failure.
    outcome: str
    #: More about the event, for people.
    detail: str = ""


class AuditTrail(Protocol):
    """Takes events. Never blocks and never raises. Counts the events that it drops."""

    def record(self, event: AuditEvent, /) -> None: ...


class NoAuditTrail:
    """Drops every event: the trail of a broker with auditing disabled."""

    __slots__ = ()

    def record(self, event: AuditEvent, /) -> None:
        pass
