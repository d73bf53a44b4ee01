"""A Spark Connect server of the installed PySpark as a child process.

    with spark_connect_server(tmp_path) as address:
        spark_session("app", remote=address)

Its output goes to `connect.log` in the folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from harness.process.broker_process import HOST, wait_until

_SECONDS_MAX = 120.0
_HOME = Path(pyspark.__file__).parent
_STARTED = re.compile(rf"Spark Connect server started at: {re.escape(HOST)}:(\d+)")
_CONFIG = {
    "spark.master": "local[2]",
    "spark.connect.grpc.binding.address": HOST,
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.bindAddress": HOST,
    "spark.driver.host": HOST,
    "spark.log.level": "INFO",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@contextmanager
def spark_connect_server(folder: Path) -> Iterator[str]:
    """Run a server and yield its address, `sc://HOST:PORT`."""
    log = folder / "connect.log"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_NO_DAEMONIZE": "1",
    }
    settings = [word for name, value in _CONFIG.items() for word in ("--conf", f"{name}={value}")]
    with log.open("w") as file:
        process = subprocess.Popen(
            ["bash", str(_HOME / "sbin" / "start-connect-server.sh"), "--wait", *settings],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: _STARTED.search(log.read_text()) or process.poll() is not None,
            "the Spark Connect server to start",
            _SECONDS_MAX,
        )
        found = _STARTED.search(log.read_text())
        assert found is not None, log.read_text()[-4000:]
        yield f"sc://{HOST}:{found[1]}"
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and the programs that it started in the same session."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
