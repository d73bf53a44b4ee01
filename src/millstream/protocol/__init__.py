"""The blocking protocol client of the CLI and the Spark connector: connections, leaders, retries.

It owns sockets, TLS, SASL, version negotiation and the retry of requests, without threads or an
event loop. It leaves records, consumer groups and the public client API to `client` and `spark`.
"""

from __future__ import annotations

from millstream.protocol.broker_connection import BrokerConnection
from millstream.protocol.cluster_client import ClusterClient, RetryBackoff
from millstream.protocol.connection_setting import ConnectionSettings, connection_settings

__all__ = [
    "BrokerConnection",
    "ClusterClient",
    "ConnectionSettings",
    "RetryBackoff",
    "connection_settings",
]
