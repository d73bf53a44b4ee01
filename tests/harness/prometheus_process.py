"""A Prometheus as a child process, which scrapes brokers and evaluates alert rules.

    with PrometheusProcess(tmp_path, {"b1": "127.0.0.1:9644"}, rules_file) as prometheus:
        prometheus.firing("MillstreamGroupFarBehind")

It scrapes and evaluates every second. `for` times are the rules' own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import yaml

from harness.broker_process import HOST, free_port, wait_until

_INSTALL = Path(__file__).resolve().parents[2] / "scripts" / "install-system-packages"
INTERVAL = "1s"


def require_prometheus() -> None:
    """Skip the calling test, with the reason, where Prometheus could not be installed."""
    if shutil.which("promtool") is None:
        result = subprocess.run([str(_INSTALL), "prometheus"], capture_output=True, text=True)
        if shutil.which("promtool") is None:
            pytest.skip(f"Prometheus is not available: {' '.join(result.stderr.split())}")


class PrometheusProcess:
    """`targets` are addresses to scrape, by the instance label that each one gets."""

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: Path) -> None:
        require_prometheus()
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        scrapes = [
            {"targets": [address], "labels": {"instance": instance}}
            for instance, address in targets.items()
        ]
        config = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": "millstream",
                    "scrape_timeout": INTERVAL,
                    "static_configs": scrapes,
                }
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("wb") as output:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={HOST}:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            wait_until(self._is_ready, "Prometheus to be ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if error is not None:
            text = (self._folder / "prometheus.log").read_text(errors="replace")
            error.add_note(f"Prometheus' last words:\n{text[-3000:]}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "Prometheus has ended"
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    @property
    def _url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def firing(self, alert: str) -> list[dict[str, str]]:
        """The labels of each series for which an alert fires."""
        with urllib.request.urlopen(f"{self._url}/api/v1/alerts", timeout=60) as response:
            found: dict[str, Any] = json.load(response)
        return [
            each["labels"]
            for each in found["data"]["alerts"]
            if each["labels"]["alertname"] == alert and each["state"] == "firing"
        ]
