"""The tools that check `deploy/` and `.github/`, such as helm, kubeconform and hadolint.

`scripts/setup-test-tools` fetches them and records missing ones in `.cache/tools.json`. A test that
needs a missing tool is skipped with the reason.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.tool.system_package import install_or_skip

REPOSITORY = Path(__file__).resolve().parents[3]
_CACHE = REPOSITORY / ".cache"
_SET_UP = "scripts/setup-test-tools has not run since this tool was added"


def go_tool(name: str) -> Path:
    """Return a tool that is built from Go's module proxy; skip the calling test without it."""
    return _fetched("go-tools") / name


def hadolint() -> Path:
    return _fetched("deploy-linters") / "hadolint"


def kubernetes_schemas() -> dict[str, Path]:
    """Return the folders of JSON schemas by version of Kubernetes."""
    folders = (_fetched("deploy-linters") / "schemas").iterdir()
    return {folder.name: folder for folder in sorted(folders)}


def require_systemd() -> None:
    """Skip the calling test, with the reason, where systemd's tools cannot be installed."""
    install_or_skip("systemd", lambda: shutil.which("systemd-analyze"))


def _fetched(name: str) -> Path:
    record = _CACHE / "tools.json"
    states: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    state = states.get(name, {"available": False, "reason": _SET_UP})
    if not state["available"]:
        pytest.skip(f"{name} is not available: {state['reason']}")
    return _CACHE / name


def run(*command: str | Path, stdin: str | None = None) -> str:
    """Return the standard output of a tool; fail the calling test if it finds a fault."""
    result = subprocess.run(
        [str(part) for part in command], input=stdin, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{command[0]}:\n{result.stdout}{result.stderr}"
    return result.stdout
