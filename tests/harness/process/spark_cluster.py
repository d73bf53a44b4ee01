"""A standalone Spark cluster: a master and workers of the installed PySpark as child processes.

    with SparkCluster(tmp_path, workers=2) as cluster:
        spark_session("app", master=cluster.master)

The output of each process goes to a file beside its folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from harness.process.broker_process import HOST, wait_until

_SECONDS_MAX = 120.0
_HOME = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class SparkCluster:
    """A cluster whose workers have one core each, so that two tasks need two workers."""

    def __init__(self, folder: Path, workers: int = 2, *, are_apart: bool = False) -> None:
        """Workers that `are_apart` have their own addresses, as if on several machines."""
        self.folder = folder
        self.workers = workers
        self._hosts = [f"127.0.0.{2 + each}" if are_apart else HOST for each in range(workers)]
        self.master = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def worker_folder(self, number: int) -> Path:
        """Return the folder of a worker's executor logs: `app-*/ID/stderr`."""
        return self.folder / f"worker-{number}"

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self) -> None:
        ports = ["--port", "0", "--webui-port", "0"]
        self._spawn("master", "org.apache.spark.deploy.master.Master", "--host", HOST, *ports)
        self._wait("master", _MASTER)
        found = _MASTER.search(self.log("master"))
        assert found is not None
        self.master = found[1]
        amounts = ["--cores", "1", "--memory", "1500m"]
        for number, host in enumerate(self._hosts):
            name, folder = f"worker-{number}", self.worker_folder(number)
            where = ["--host", host, *ports, "--work-dir", str(folder), self.master]
            self._spawn(name, "org.apache.spark.deploy.worker.Worker", *amounts, *where)
        for number in range(self.workers):
            self._wait(f"worker-{number}", re.compile("Successfully registered with master"))

    def _spawn(self, name: str, program: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JVM,
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.folder / f"{name}.log").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
            )

    def _wait(self, name: str, line: re.Pattern[str]) -> None:
        process = self._processes[name]

        def is_said() -> bool:
            assert process.poll() is None, f"{name} exited:\n{self.log(name)}"
            return line.search(self.log(name)) is not None

        wait_until(is_said, f"{name} to log {line.pattern!r}", _SECONDS_MAX)
