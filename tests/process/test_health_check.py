"""The health check of the container, against a real broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.broker_process import BrokerProcess


def check(*arguments: str) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, "-m", "millstream.process.health_check", *arguments],
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stdout + result.stderr


def test_a_broker_is_healthy_until_it_stops(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        url = broker.http_url
        assert check(f"{url}/readyz") == (0, "ready\n")
        code, text = check(f"{url}/nowhere")
        assert code == 1
        assert text.startswith("try /metrics")
        broker.stop()
        code, text = check(f"{url}/readyz")
        assert code == 1
        assert text.startswith(f"no response from {url}/readyz: ")


def test_without_a_url_the_usage_is_printed() -> None:
    assert check() == (2, "usage: python -m millstream.process.health_check URL\n")
