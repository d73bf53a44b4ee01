"""A blocking client of the protocol, for the processes that Spark starts. No threads, no loop.

`setting.py` what `kafka.*` options say of connections · `link.py` one connection, on which requests
may be pipelined · `sasl.py` logging in · `cluster.py` brokers, leaders, coordinators and retries.
"""

from __future__ import annotations

from millstream.protocol.broker_connection import Link
from millstream.protocol.cluster_client import Cluster, Retry
from millstream.protocol.connection_setting import ConnectionSettings, connection_settings

__all__ = ["Cluster", "ConnectionSettings", "Link", "Retry", "connection_settings"]
