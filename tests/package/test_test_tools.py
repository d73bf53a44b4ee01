"""`scripts/setup-test-tools` without a network: it succeeds and says what is missing and why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.tool.deploy_tool import REPOSITORY

#: Nothing listens on the port of the discard service.
_CLOSED = "127.0.0.1:9"
#: Where each tool comes from, in the words of the reason.
_SOURCES = {
    "jars": "Maven Central",
    "kafka-applications": "Maven Central",
    "spark-connector": "Maven Central",
    "kafkajs": "the npm registry",
    "go-tools": "Go",
    "deploy-linters": "PyPI",
}

pytestmark = pytest.mark.soak


def blocked(folder: Path) -> dict[str, str]:
    """Return variables that lead every registry to a closed port, with empty caches."""
    host, port = _CLOSED.split(":")
    proxies = [f"-D{kind}.proxyHost={host} -D{kind}.proxyPort={port}" for kind in ("http", "https")]
    return {
        "MAVEN_OPTS": f"-Dmaven.repo.local={folder / 'maven'} {' '.join(proxies)}",
        "npm_config_registry": f"http://{_CLOSED}/",
        "npm_config_cache": str(folder / "npm"),
        "npm_config_fetch_retry_mintimeout": "10",
        "npm_config_fetch_retry_maxtimeout": "10",
        "GOPROXY": f"http://{_CLOSED}",
        "GOMODCACHE": str(folder / "go"),
        "PIP_INDEX_URL": f"http://{_CLOSED}/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
    }


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a checkout in which the script has run, and what it said."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("scripts", "requirements"):
        shutil.copytree(REPOSITORY / name, checkout / name)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    result = subprocess.run(
        [checkout / "scripts" / "setup-test-tools"],
        env={**os.environ, **blocked(tmp_path_factory.mktemp("caches"))},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return checkout, result.stderr


@pytest.mark.parametrize("tool", _SOURCES)
def test_a_missing_tool_is_named_with_its_source(offline: tuple[Path, str], tool: str) -> None:
    checkout, said = offline
    states = json.loads((checkout / ".cache" / "tools.json").read_text())
    state = states[tool]
    assert state["available"] is False
    assert _SOURCES[tool] in state["reason"]
    assert f"test tool {tool} is not available: {state['reason']}" in said


def test_nothing_half_fetched_is_left(offline: tuple[Path, str]) -> None:
    checkout, _ = offline
    left = [path.name for path in (checkout / ".cache").iterdir() if path.is_dir()]
    assert left == []
