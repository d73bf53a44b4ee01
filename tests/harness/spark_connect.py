"""A Spark Connect server as a process of its own, started with Spark's own script.

    with connect_server(tmp_path) as remote:
        spark_session("app", remote=remote)

What it says goes to files in `folder`, its tables to `folder/warehouse`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyspark

from harness.broker_process import HOST, wait_until

_SECONDS_MAX = 180.0
_HOME = Path(pyspark.__file__).parent


@contextmanager
def connect_server(folder: Path, master: str = "local[2]") -> Iterator[str]:
    """Its address, once it answers there."""
    port = _free_port()
    settings = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": 1,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.ui.enabled": "false",
    }
    options = [part for each in settings.items() for part in ("--conf", "{}={}".format(*each))]
    _script("start-connect-server.sh", folder, "--master", master, *options)
    try:
        wait_until(lambda: _is_open(port), f"Spark Connect on port {port}", _SECONDS_MAX)
        yield f"sc://{HOST}:{port}"
    finally:
        _script("stop-connect-server.sh", folder)


def _script(name: str, folder: Path, *arguments: str) -> None:
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOG_DIR": str(folder),
        "SPARK_PID_DIR": str(folder),
    }
    command = [str(_HOME / "sbin" / name), *arguments]
    subprocess.run(
        command, env=os.environ | ours, cwd=folder, check=True, stdout=subprocess.DEVNULL
    )


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_open(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex((HOST, port)) == 0
