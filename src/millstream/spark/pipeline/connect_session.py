"""The Spark Connect sessions that a pipeline needs.

Declarative pipelines exist only over Spark Connect. Without a server's address, one is started
inside a Spark of our own, on a port that nobody else has, with a token that nobody else knows, and
both end together.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millstream.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A session of its own for whoever asks, which ends with the context.
Sessions: TypeAlias = "Callable[[], AbstractContextManager[SparkSession]]"

_PLUGIN: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"
_SERVICE: Final = "org.apache.spark.sql.connect.service.SparkConnectService$"
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
_CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
_OURS: Final = {
    "spark.plugins": _PLUGIN,
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.ui.enabled": "false",
    # What goes wrong is told once, by the run, and not by each part of Spark that it passes.
    "spark.log.level": "FATAL",
}


@contextmanager
def connect_sessions(
    app: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> Iterator[Sessions]:
    """Sessions of the server at `remote`, or of one on `master` that ends here; `config` is for
    the latter."""
    if remote is not None:
        yield lambda: _remote(app, remote)
        return
    os.environ.setdefault(_TOKEN, secrets.token_hex(16))
    server: Any = spark_session(app, master=master, config=_OURS | dict(config or {}))
    try:
        service = getattr(server._jvm, _SERVICE)  # noqa: SLF001 - the port is known nowhere else
        port = getattr(service, "MODULE$").localPort()
        yield lambda: _local(port)
    finally:
        server.stop()


@contextmanager
def _remote(app: str, remote: str) -> Iterator[SparkSession]:
    session = spark_session(app, remote=remote)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _local(port: int) -> Iterator[SparkSession]:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    before = os.environ.get(_CONNECT_MODE)
    # Functions and columns are made for a classic session otherwise.
    os.environ[_CONNECT_MODE] = "1"
    session: Any = ConnectSession.builder.remote(f"sc://localhost:{port}").create()
    try:
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session
    finally:
        session.stop()
        if before is None:
            os.environ.pop(_CONNECT_MODE, None)
