"""A Prometheus server as a child process, which scrapes brokers and evaluates alert rules.

    with PrometheusProcess(tmp_path, {"b1": "127.0.0.1:9644"}, rules_file) as prometheus:
        prometheus.firing("MillstreamGroupFarBehind")

It scrapes and evaluates every second. The `for` times are those of the rules.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.process.broker_process import HOST, free_port
from harness.tool.system_package import install_or_skip
from millstream.process.readiness import responds
from millstream.process.server_process import ServerProcess

INTERVAL = "1s"


def require_prometheus() -> None:
    """Skip the calling test, with the reason, where Prometheus cannot be installed."""
    install_or_skip("prometheus", lambda: shutil.which("promtool"))


class PrometheusProcess(ServerProcess):
    """A Prometheus server. `targets` are the addresses to scrape, by their instance label."""

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: Path) -> None:
        require_prometheus()
        super().__init__("prometheus", folder / "prometheus.log")
        self._folder = folder
        self._port = free_port()
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

    def command(self) -> Sequence[str]:
        return [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={HOST}:{self._port}",
        ]

    def is_ready(self) -> bool:
        return responds(f"{self._url}/-/ready")

    @property
    def _url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query. Fails if Prometheus rejects the query."""
        parameters = urllib.parse.urlencode({"query": expression})
        url = f"{self._url}/api/v1/query?{parameters}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                rows: list[dict[str, Any]] = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return rows

    def firing(self, alert: str) -> list[dict[str, str]]:
        """Return the labels of each series for which an alert fires."""
        with urllib.request.urlopen(f"{self._url}/api/v1/alerts", timeout=60) as response:
            found: dict[str, Any] = json.load(response)
        return [
            each["labels"]
            for each in found["data"]["alerts"]
            if each["labels"]["alertname"] == alert and each["state"] == "firing"
        ]
