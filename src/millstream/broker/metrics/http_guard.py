"""Decides which clients may use the HTTP server: by a bearer token, or by their certificate.

The server has one context for its lifetime. During each handshake it is exchanged for the newest
one, so that replaced certificates and trusted authorities apply to new connections.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable
from typing import Final

from aiohttp import web

from millstream.security.tls_source import TlsSource

_SCHEME: Final = "bearer"


def _no_token() -> str | None:
    return None


class HttpGuard:
    """The rules of one HTTP server. Without a token and without certificates of clients everything
    is allowed, or nothing if it is closed."""

    __slots__ = ("_is_closed", "_requires_client", "_tls", "_token")

    def __init__(
        self,
        token: Callable[[], str | None] = _no_token,
        tls: TlsSource | None = None,
        *,
        requires_client: bool = False,
        is_closed: bool = False,
    ) -> None:
        #: Returns the token in force; None if there is none.
        self._token = token
        self._tls = tls
        #: Whether clients present certificates, so that a client without one needs a token.
        self._requires_client = requires_client
        self._is_closed = is_closed

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of the server; None for plain HTTP."""
        tls = self._tls
        if tls is None:
            return None

        def use_newest(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = tls.server

        # An exchanged context does not change whether the connection asks for a certificate. This
        # setting cannot change at run time.
        context = tls.make_server()
        context.sni_callback = use_newest
        return context

    def admits(self, request: web.BaseRequest) -> bool:
        """Whether the client has the token, or a certificate that TLS has verified."""
        token = self._token()
        if token is None and not self._requires_client:
            return not self._is_closed
        if self._requires_client and _has_certificate(request):
            return True
        # An empty token is one that could not be read.
        return _has_token(request, token or "")


def _has_certificate(request: web.BaseRequest) -> bool:
    transport = request.transport
    found = None if transport is None else transport.get_extra_info("ssl_object")
    return found is not None and found.getpeercert(binary_form=True) is not None


def _has_token(request: web.BaseRequest, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # Compared as bytes: the comparison of texts allows ASCII only.
    return (
        bool(token)
        and scheme.lower() == _SCHEME
        and hmac.compare_digest(given.strip().encode(errors="surrogateescape"), token.encode())
    )
