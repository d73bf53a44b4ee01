"""Records logins by certificates: each connection whose client has one, and rejected certificates.

Handshakes that fail for other reasons are no logins: they are logged and counted only.
"""

from __future__ import annotations

from typing import Final

from millstream.model.principal import ANONYMOUS, Principal
from millstream.net.tls_transport import HandshakeFailure
from millstream.security.audit_event import OK, AuditEvent, AuditKind, AuditTrail

#: The action of the events.
_TLS: Final = "TLS"
_REJECTIONS: Final = frozenset(
    {HandshakeFailure.NO_CERTIFICATE, HandshakeFailure.CERTIFICATE, HandshakeFailure.PRINCIPAL}
)


def record_login(trail: AuditTrail, principal: Principal, address: str, listener: str) -> None:
    """Record a new connection, if its client is known by its certificate."""
    if principal is not ANONYMOUS:
        trail.record(_event(str(principal), address, listener, OK))


class RejectedCertificates:
    """Records handshakes in which the broker rejects the client (`Gate.on_failed_handshake`)."""

    __slots__ = ("_trail",)

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    def record(self, listener: str, address: str, failure: str, reason: str) -> None:
        if failure in _REJECTIONS:
            self._trail.record(_event("", address, listener, str(failure), reason))


def _event(
    principal: str, address: str, listener: str, outcome: str, detail: str = ""
) -> AuditEvent:
    return AuditEvent(
        AuditKind.AUTHENTICATION,
        _TLS,
        principal,
        address,
        "",
        f"listener:{listener}",
        outcome,
        detail,
    )
