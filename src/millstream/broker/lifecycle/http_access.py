"""Makes the guard of the HTTP server from the settings: its token, and its TLS.

A token in a file is read for each request, so that a replaced file applies at once. If the file
cannot be read, no token is valid.

Once the broker is secure, a server without a token and without certificates of clients serves only
`/healthz`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.broker.config.section.authorization import ENFORCE
from millstream.broker.lifecycle.listener_tls import BrokerTls
from millstream.env.disk import Disk

if TYPE_CHECKING:
    from millstream.broker.metrics.http_guard import HttpGuard

_logger = logging.getLogger(__name__)


def http_guard(config: BrokerConfig, tls: BrokerTls, disk: Disk) -> HttpGuard:
    """Return the guard that the settings describe. Raises ConfigError."""
    # It imports the HTTP library, which only a broker with an HTTP server needs.
    from millstream.broker.metrics.http_guard import HttpGuard

    network = config.network
    requires_client = network.http_ssl_client_auth != "none"
    has_token = network.http_bearer_token is not None or network.http_bearer_token_file is not None
    is_closed = is_secure(config) and not requires_client and not has_token
    if is_closed:
        _logger.warning(
            "the HTTP server serves only /healthz, because the broker is secure: set"
            " http.bearer.token.file, or http.ssl.client.auth"
        )
    return HttpGuard(
        _token_source(config, disk),
        tls.http(config),
        requires_client=requires_client,
        is_closed=is_closed,
    )


def is_secure(config: BrokerConfig) -> bool:
    """Return whether clients need rights, or every listener has TLS or SASL."""
    authorization = config.authorization
    if authorization.authorizer_class_name and authorization.authorizer_mode == ENFORCE:
        return True
    protocols = config.network.listener_protocols.values()
    return all(protocol.has_tls or protocol.has_sasl for protocol in protocols)


def _token_source(config: BrokerConfig, disk: Disk) -> Callable[[], str | None]:
    token, file = config.network.http_bearer_token, config.network.http_bearer_token_file
    if file is None:
        if token == "":
            raise ConfigError("http.bearer.token is empty: expected a secret text")
        return lambda: token
    path = Path(file)
    try:
        if not disk.read(path).strip():
            raise ConfigError(f"http.bearer.token.file = {file!r} is empty")
    except OSError as error:
        raise ConfigError(
            f"http.bearer.token.file = {file!r} cannot be read: {error.strerror or error}"
        ) from error

    def read() -> str:
        try:
            return disk.read(path).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            _logger.error("http.bearer.token.file cannot be read: %s", error)
            return ""

    return read
