"""Creates the Spark Connect sessions of a pipeline.

Declarative pipelines require Spark Connect. Without the address of a server, this module starts a
Spark with a Connect server on a free port, protected by a random token. Both end with the context.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millstream.spark.redaction import hide_secrets
from millstream.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Returns a context with a new session, which ends with the context.
Sessions: TypeAlias = "Callable[[], AbstractContextManager[SparkSession]]"

_PLUGIN: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"
_SERVICE: Final = "org.apache.spark.sql.connect.service.SparkConnectService$"
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
_CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
_SERVER_CONFIG: Final = {
    "spark.plugins": _PLUGIN,
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.ui.enabled": "false",
    # The update reports errors once; Spark would log them several times.
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
    """Yield a factory of sessions of the server at `remote`, or of a new server on `master`.

    `config` applies to the new server."""
    if remote is not None:
        yield lambda: _remote(app, remote)
        return
    os.environ.setdefault(_TOKEN, secrets.token_hex(16))
    server: Any = spark_session(app, master=master, config=_SERVER_CONFIG | dict(config or {}))
    try:
        service = getattr(server._jvm, _SERVICE)  # noqa: SLF001 - no public way to get the port
        port = getattr(service, "MODULE$").localPort()
        yield lambda: _local(port)
    finally:
        server.stop()


@contextmanager
def _remote(app: str, remote: str) -> Iterator[SparkSession]:
    session = spark_session(app, remote=remote)
    try:
        hide_secrets(session)
        yield session
    finally:
        session.stop()


@contextmanager
def _local(port: int) -> Iterator[SparkSession]:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    before = os.environ.get(_CONNECT_MODE)
    # Otherwise Spark creates functions and columns for a classic session.
    os.environ[_CONNECT_MODE] = "1"
    session: Any = ConnectSession.builder.remote(f"sc://localhost:{port}").create()
    try:
        session.conf.set("spark.sql.session.timeZone", "UTC")
        hide_secrets(session)
        yield session
    finally:
        session.stop()
        if before is None:
            os.environ.pop(_CONNECT_MODE, None)
