"""Debian packages that tests need, such as etcd or PostgreSQL."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

_INSTALL = Path(__file__).resolve().parents[3] / "scripts" / "install-system-packages"


def install_or_skip(package: str, is_installed: Callable[[], object]) -> None:
    """Install a package unless it is installed; skip the calling test if that fails."""
    if is_installed():
        return
    result = subprocess.run([str(_INSTALL), package], capture_output=True, text=True)
    if not is_installed():
        pytest.skip(f"{package} is not available: {' '.join(result.stderr.split())}")
