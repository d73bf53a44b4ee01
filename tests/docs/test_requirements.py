"""The pinned requirements of the broker install without a compiler, also on newer Pythons."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "runtime.txt"
#: Supported Python versions, and the next one.
NEWEST = "3.14"
_ENTRY = re.compile(r"^([\w.-]+)==.*(?:\n    .*)*", re.MULTILINE)
_UNREACHABLE = ("NewConnectionError", "Connection to", "ReadTimeoutError", "Max retries exceeded")


def compiled() -> str:
    """Return the pinned requirements that have compiled parts."""
    found = []
    for match in _ENTRY.finditer(REQUIREMENTS.read_text()):
        try:
            files = importlib.metadata.files(match[1]) or []
        except importlib.metadata.PackageNotFoundError:
            # Requirements of another Python or platform.
            continue
        if any(file.name.endswith(".so") for file in files):
            found.append(match[0].rstrip(" \\"))
    return "\n".join(found) + "\n"


@pytest.mark.soak
def test_every_compiled_requirement_has_a_wheel(tmp_path: Path) -> None:
    text = compiled()
    assert "msgspec==" in text
    (tmp_path / "requirements.txt").write_text(text)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", NEWEST]
    command += ["--target", str(tmp_path / "target"), "-r", str(tmp_path / "requirements.txt")]
    result = subprocess.run(command, capture_output=True, text=True)
    if any(each in result.stderr for each in _UNREACHABLE):
        pytest.skip(f"no package index can be reached: {result.stderr.splitlines()[0]}")
    assert result.returncode == 0, result.stderr
