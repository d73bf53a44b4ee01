"""The one place that builds a SparkSession.

Owns what every session of Millstream's jobs and pipelines has in common. Executors import
`pyspark_millstream` from their own Python: locally that is this interpreter, elsewhere Millstream
is installed beside Spark.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from millstream.spark.error import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"
#: Of a Spark Connect server whose address has none.
_PORT: Final = 15002
_ANSWER_S_MAX: Final = 10.0

#: Timestamps mean the same everywhere, and filters reach the source.
_CONFIG: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Rows reach the sink while more are made ready: with Spark's 64 MB, and 10,000 rows, large
    # rows come in few batches, and either side waits for the other.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
}
#: These belong to the process that runs Spark, which over Spark Connect is not this one.
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
    """A session named `app`: on `master` (all cores of this machine unless it is given), or of the
    Spark Connect server at `remote` (`local[2]`: one that is started here). `config` wins over what
    is set here.

    Raises ValueError if both are given, ImportError if Spark is not installed.
    """
    if master is not None and remote is not None:
        raise ValueError("a session has a master or a remote, not both")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError('Spark is not installed: install "millstream[spark]"') from error
    builder = SparkSession.builder.appName(app)
    chosen = remote or master or os.environ.get("SPARK_MASTER") or LOCAL_MASTER
    builder = builder.master(chosen) if remote is None else builder.remote(remote)
    settings = dict(_CONFIG)
    if remote is None or remote.startswith("local"):
        settings |= _CLASSIC_CONFIG | _place(chosen)
    for name, value in (settings | dict(config or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def require_server(remote: str) -> None:
    """Raise Unavailable where nobody listens at the address of a Spark Connect server: its client
    would go on trying for many minutes, without a word."""
    place = urlsplit(remote)
    if place.scheme != "sc" or place.hostname is None:
        return
    # Parameters that follow, a token among them, are nobody's business.
    address = (place.hostname, place.port or _PORT)
    try:
        socket.create_connection(address, _ANSWER_S_MAX).close()
    except OSError as error:
        where = ":".join(map(str, address))
        raise Unavailable(f"no Spark Connect server answers at {where}: {error}") from None


def _place(master: str) -> dict[str, str]:
    """What is set where Spark runs on this machine alone; also in the environment of its JVM."""
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    return {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
