"""Builds the SparkSession of every Millstream job and pipeline.

Executors import `pyspark_millstream` from their own Python. Locally that is this interpreter;
elsewhere Millstream must be installed next to Spark.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from millstream.model.error import UsageError
from millstream.spark.error import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"
#: The default port of a Spark Connect server.
_PORT: Final = 15002
_CONNECT_S_MAX: Final = 10.0

#: One time zone for all sessions, and filter pushdown to the source.
_CONFIG: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Small batches let Spark compute rows while the sink writes. With Spark's default (64 MB or
    # 10,000 rows), large rows come in few batches, and each side waits for the other.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
}
#: Settings of the process that runs Spark. With Spark Connect that is another process.
_CLASSIC_CONFIG: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


def spark_session(
    app: str,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session named `app`.

    It runs on `master` (default: all cores of this machine) or on the Spark Connect server at
    `remote` (`local[2]` starts one here). `config` overrides the settings of this module.

    Raises ValueError if both are set, ImportError if Spark is not installed.
    """
    if master is not None and remote is not None:
        raise UsageError("a session has a master or a remote, not both")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError('Spark is not installed: install "millstream[spark]"') from error
    builder = SparkSession.builder.appName(app)
    chosen = remote or master or os.environ.get("SPARK_MASTER") or LOCAL_MASTER
    builder = builder.master(chosen) if remote is None else builder.remote(remote)
    settings = dict(_CONFIG)
    if remote is None or remote.startswith("local"):
        settings |= _CLASSIC_CONFIG | _local_config(chosen)
    for name, value in (settings | dict(config or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def require_server(remote: str) -> None:
    """Raise Unavailable if no Spark Connect server listens at the address.

    Spark's own client would retry silently for many minutes."""
    url = urlsplit(remote)
    if url.scheme != "sc" or url.hostname is None:
        return
    # The parameters after the address may contain a token and must not be shown.
    address = (url.hostname, url.port or _PORT)
    try:
        socket.create_connection(address, _CONNECT_S_MAX).close()
    except OSError as error:
        where = ":".join(map(str, address))
        raise Unavailable(f"no Spark Connect server answers at {where}: {error}") from None


def _local_config(master: str) -> dict[str, str]:
    """Return the settings for a Spark on this machine only, and set the environment of its JVM."""
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    return {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
