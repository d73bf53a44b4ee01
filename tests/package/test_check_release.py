"""The checks before a release."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_release.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TAG = f"v{PROJECT['version']}"
REPOSITORY = PROJECT["urls"]["Source"]


def checkout(folder: Path, changelog: str) -> Path:
    """Return the script in a checkout with this changelog."""
    (folder / "scripts").mkdir()
    copy = folder / "scripts" / SCRIPT.name
    copy.write_text(SCRIPT.read_text())
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (folder / "CHANGELOG.md").write_text(changelog)
    return copy


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("heading", ["## {}", "## {} (2026-11-18)"])
def test_a_complete_release_passes(tmp_path: Path, heading: str) -> None:
    script = checkout(tmp_path, heading.format(PROJECT["version"]) + "\n\n- News.\n")
    result = run(script, TAG, REPOSITORY)
    assert (result.returncode, result.stdout) == (0, "")


def test_every_problem_is_named(tmp_path: Path) -> None:
    script = checkout(tmp_path, "## Unreleased\n\n- News.\n")
    result = run(script, "v99.0", "https://example.org/fork")
    assert result.returncode == 1
    assert f"the tag is v99.0, but pyproject.toml has version {PROJECT['version']}" in result.stdout
    assert "CHANGELOG.md has no section" in result.stdout
    assert result.stdout.count("which is not in https://example.org/fork") == len(PROJECT["urls"])


def test_missing_arguments_print_the_usage(tmp_path: Path) -> None:
    result = run(checkout(tmp_path, ""), TAG)
    assert (result.returncode, result.stderr) == (
        2,
        "usage: check_release.py TAG REPOSITORY-URL\n",
    )
