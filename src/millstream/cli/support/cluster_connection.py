"""The protocol client of commands whose requests librdkafka does not have.

It takes the same `--property` options as librdkafka, TLS and SASL included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import CommandError, ExitCode, no_connection
from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.cluster_client import ClusterClient
from millstream.protocol.connection_setting import ConnectionSettings, connection_settings
from millstream.protocol.error import ConnectionLost, SettingError, Unavailable

_CLIENT_ID: Final = "millstream-cli"


@contextmanager
def connected_cluster(
    servers: str, properties: Iterable[str] | None, timeout_s: float
) -> Iterator[ClusterClient]:
    """Return a client that has fetched the cluster's metadata. Errors become CommandErrors."""
    try:
        with ClusterClient(_settings(servers, properties, timeout_s)) as cluster:
            # One attempt without retries: a user wants to know at once that nothing listens.
            cluster.fetch_metadata()
            yield cluster
    except SettingError as error:
        raise CommandError(ExitCode.USAGE, f"{error}; see --property.") from None
    except (ConnectionLost, Unavailable) as error:
        raise no_connection(servers, str(error)) from None
    except BrokerError as error:
        is_down = error.code is ErrorCode.BROKER_NOT_AVAILABLE
        code = ExitCode.NO_CONNECTION if is_down else ExitCode.FAILED
        raise CommandError(code, f"{error}.") from None


def _settings(
    servers: str, properties: Iterable[str] | None, timeout_s: float
) -> ConnectionSettings:
    timeout_ms = str(int(timeout_s * 1000))
    return connection_settings(
        ClientProperties(
            {
                "request.timeout.ms": timeout_ms,
                "socket.connection.setup.timeout.ms": timeout_ms,
                "default.api.timeout.ms": timeout_ms,
                **parse_pairs(properties or (), "--property"),
                "bootstrap.servers": servers,
            }
        ),
        _CLIENT_ID,
    )


def rejection(code: int, what: str) -> CommandError:
    """Return the failure for an error code of the protocol; `what` names the action."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = str(code)
    return CommandError(ExitCode.FAILED, f"{what}: the broker responded with {name}.")
