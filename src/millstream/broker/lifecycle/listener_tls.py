"""TLS of a broker's listeners and HTTP server: contexts, identities, and replaced files.

Makes the `TlsSource` of each listener from the settings. Every `REFRESH_S` it reads the files of
keys and certificates again, so that a replaced file applies to new connections without a restart.
Settings that change at run time apply at once.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Final

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.env.disk import Disk
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.model.principal import ANONYMOUS, USER, Principal
from millstream.security.certificate import parse_certificate
from millstream.security.principal_mapping import PrincipalMapping
from millstream.security.tls_material import TlsError, TlsOptions
from millstream.security.tls_source import TlsSource

_logger = logging.getLogger(__name__)

REFRESH_S: Final = 3.0
#: Stands for the HTTP server. Names of listeners are in upper case.
HTTP: Final = "http"


class ListenerTls:
    """The TLS of one listener: a `TlsEndpoint`."""

    __slots__ = ("_mapping", "_source")

    def __init__(self, source: TlsSource, mapping: PrincipalMapping | None) -> None:
        self._source = source
        #: None on a listener where SASL decides who the client is.
        self._mapping = mapping

    def context(self) -> ssl.SSLContext:
        return self._source.server

    def identify(self, certificate: bytes | None) -> Principal:
        if self._mapping is None or certificate is None:
            return ANONYMOUS
        return Principal(USER, self._mapping.name_of(parse_certificate(certificate).subject))


class BrokerTls:
    """The TLS of all listeners of a broker. Empty until `load`."""

    __slots__ = ("_disk", "_inter_broker", "_task", "endpoints", "sources")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        #: By listener name, and `HTTP`.
        self.sources: dict[str, TlsSource] = {}
        self.endpoints: dict[str, ListenerTls] = {}
        self._inter_broker = ""
        self._task: SupervisedTask | None = None

    def load(self, config: BrokerConfig, static: BrokerConfig) -> None:
        """Read the keys and certificates of all listeners. Raises ConfigError.

        If settings from the metadata store cannot be used, the `static` settings apply, so that a
        change at run time does not prevent the next start."""
        self._inter_broker = config.network.inter_broker_listener
        self.http(config)
        protocols = config.network.security_protocols
        for name, found in options.tls_options(config).items():
            source = self._listener_source(name, found, options.tls_options(static)[name])
            rules = config.listener_value(name, "ssl.principal.mapping.rules")
            mapping = None if protocols[name].has_sasl else PrincipalMapping(rules)
            self.sources[name] = source
            self.endpoints[name] = ListenerTls(source, mapping)

    def _listener_source(self, name: str, found: TlsOptions, static: TlsOptions) -> TlsSource:
        try:
            return self._source(f"the listener {name}", found)
        except ConfigError as error:
            if found == static:
                raise
            _logger.error("settings changed at run time are not applied: %s", error)
            return self._source(f"the listener {name}", static)

    def http(self, config: BrokerConfig) -> TlsSource | None:
        """Return the contexts of the HTTP server; None if it has no TLS. Raises ConfigError."""
        found = options.http_tls_options(config)
        if found is not None and HTTP not in self.sources:
            self.sources[HTTP] = self._source("the HTTP server", found)
        return self.sources.get(HTTP)

    def _source(self, name: str, found: TlsOptions) -> TlsSource:
        try:
            return TlsSource(name, found, self._disk)
        except TlsError as error:
            raise ConfigError(f"{name}: {error}") from error

    def peer_context(self) -> ssl.SSLContext | None:
        """Return the context for a connection to another broker; None if it has no TLS."""
        source = self.sources.get(self._inter_broker)
        return None if source is None else source.client

    def configure(self, changed: Mapping[str, TlsOptions]) -> None:
        """Apply settings that were changed at run time."""
        for name, found in changed.items():
            self.sources[name].configure(found)

    def start(self, supervisor: Supervisor) -> None:
        """Start the task that refreshes keys and certificates, if there are files of them."""
        if self.sources:
            self._task = supervisor.start("tls", self._follow)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    def refresh(self) -> None:
        """Read all files again."""
        for source in self.sources.values():
            source.refresh()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            self.refresh()
