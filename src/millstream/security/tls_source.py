"""The TLS contexts in force of one endpoint, which follow their files and settings.

`refresh` reads keys, certificates and revocation lists again, and makes new contexts if anything
has changed. Connections that are opened later use them; open connections keep theirs. If the new
files cannot be used, the old contexts stay in force, and the failure is logged once and counted.
"""

from __future__ import annotations

import logging
import ssl
from datetime import datetime

from millstream.env.disk import Disk
from millstream.security.certificate import parse_certificate
from millstream.security.pem import der_of
from millstream.security.tls_context import client_context, server_context
from millstream.security.tls_material import TlsError, TlsMaterial, TlsOptions, read_material

_logger = logging.getLogger(__name__)


class TlsSource:
    """Contexts of one endpoint. Event loop only."""

    __slots__ = (
        "_disk",
        "_material",
        "_problem",
        "client",
        "expires_at",
        "failures",
        "name",
        "options",
        "reloads",
        "server",
    )

    def __init__(self, name: str, options: TlsOptions, disk: Disk) -> None:
        """Read keys and certificates. Raises TlsError."""
        #: What the endpoint is, for log lines.
        self.name = name
        self._disk = disk
        #: The last failure, which is logged once.
        self._problem = ""
        #: How often new keys or certificates came into force, or could not be used.
        self.reloads = 0
        self.failures = 0
        self.options = options
        self._material: TlsMaterial
        #: For connections that clients open.
        self.server: ssl.SSLContext
        #: For connections to other brokers.
        self.client: ssl.SSLContext
        #: When the certificate expires.
        self.expires_at: datetime
        self._load(options, read_material(options, disk))

    def make_server(self) -> ssl.SSLContext:
        """Return another context like `server`."""
        return server_context(self.options, self._material)

    def configure(self, options: TlsOptions) -> None:
        """Apply settings that were changed at run time."""
        self._replace(options)

    def refresh(self) -> None:
        """Read the files again. Never raises."""
        self._replace(self.options)

    def _replace(self, options: TlsOptions) -> None:
        try:
            material = read_material(options, self._disk)
            if options == self.options and material == self._material:
                self._problem = ""
                return
            self._load(options, material)
        except TlsError as error:
            self._failed(str(error))
            return
        self._problem = ""
        self.reloads += 1
        _logger.info(
            "%s uses new keys or certificates; its certificate expires at %s",
            self.name,
            self.expires_at.isoformat(),
        )

    def _load(self, options: TlsOptions, material: TlsMaterial) -> None:
        server, client = server_context(options, material), client_context(options, material)
        try:
            expires_at = parse_certificate(der_of(material.chain[0])).not_after
        except ValueError as error:
            raise TlsError(f"{options.prefix}keystore: {error}") from error
        self.options, self._material = options, material
        self.server, self.client = server, client
        self.expires_at = expires_at

    def _failed(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        self.failures += 1
        _logger.error("%s keeps its present keys and certificates: %s", self.name, problem)
