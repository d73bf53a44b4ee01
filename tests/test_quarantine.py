"""The list of tests in quarantine, and what the plugin makes of such a list."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from harness.quarantine import LIST, read_list

TESTS = Path(__file__).parent
ROOT = TESTS.parent

#: Each test fails until it has been run as often as its name says.
SUITE = """
from pathlib import Path
import pytest

pytestmark = pytest.mark.xdist_group("some group")

def attempt(name, wanted):
    file = Path(__file__).with_name(name)
    count = file.stat().st_size if file.exists() else 0
    file.write_bytes(bytes(count + 1))
    assert count + 1 >= wanted, f"attempt {count + 1} of {name}"

@pytest.fixture
def broken(request):
    attempt("setup", 2)

def test_once(): attempt("once", 1)
def test_twice(): attempt("twice", 2)
def test_thrice(): attempt("thrice", 3)
def test_setup(broken): pass
def test_absent(): pytest.skip("it is not there")
@pytest.mark.parametrize("number", [1, 2])
def test_many(number): attempt(f"many{number}", number)
"""
ENTRY = '[[test]]\nname = "test_suite.py::{}"\nreason = "It is {}."\ndate = 2026-01-02\n'


def run(folder: Path, *names: str, workers: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = xdist_group: as xdist has it\n")
    (folder / "list.toml").write_text("".join(ENTRY.format(name, "known") for name in names))
    command = [sys.executable, "-m", "pytest", "-p", "harness.quarantine", "-q"]
    command += ["--quarantine", str(folder / "list.toml"), "-p", "no:cacheprovider"]
    command += ["-n", str(workers), "--dist", "loadgroup"] if workers else ["-p", "no:xdist"]
    return subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_test_of_the_list_is_retried_once_and_reported(tmp_path: Path, workers: int) -> None:
    found = run(tmp_path, "test_twice", "test_setup", "test_many", "test_once", workers=workers)
    text = found.stdout
    assert found.returncode == 1, text
    assert "1 failed, 5 passed" in text
    _, report = text.split("quarantined tests")
    since = "since 2026-01-02: It is known."
    assert f"test_suite.py::test_once passed; {since}" in report
    for name, file in (("test_twice", "twice"), ("test_setup", "setup"), ("test_many[2]", "many2")):
        reason = f"AssertionError: attempt 1 of {file}"
        assert f"test_suite.py::{name} failed first ({reason}), then passed; {since}" in report
    assert "test_thrice failed first" not in report
    assert {name: (tmp_path / name).stat().st_size for name in ("once", "twice", "thrice")} == {
        "once": 1,
        "twice": 2,
        "thrice": 1,
    }


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    found = run(tmp_path, "test_thrice", "test_twice", "test_setup", "test_many")
    assert found.returncode == 1, found.stdout
    assert "1 failed, 5 passed" in found.stdout
    assert "test_thrice failed first (" in found.stdout
    assert "), then failed again; since" in found.stdout


def test_a_test_that_is_skipped_is_not_called_passed(tmp_path: Path) -> None:
    result = run(tmp_path, "test_absent")
    assert "test_suite.py::test_absent skipped; since 2026-01-02" in result.stdout


def test_a_test_that_is_not_on_the_list_is_not_retried(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found.returncode == 1, found.stdout
    assert "3 failed, 2 passed, 1 skipped, 1 error" in found.stdout
    assert "quarantined" not in found.stdout


@pytest.mark.parametrize(
    "text",
    [
        '[[test]]\nname = "a"\nreason = "b"\n',
        '[[test]]\nname = "a"\nreason = " "\ndate = 2026-01-02\n',
        '[[test]]\nname = "a"\nreason = "b"\ndate = "2026-01-02"\n',
        '[[test]]\nname = "a"\nreason = "b"\ndate = 2026-01-02\nuntil = 2026-01-03\n',
        2 * '[[test]]\nname = "a"\nreason = "b"\ndate = 2026-01-02\n',
        '[test]\nname = "a"\n',
        '[[tests]]\nname = "a"\n',
        "nonsense",
    ],
)
def test_a_list_that_is_wrong_stops_the_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "list.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"list\.toml: "):
        read_list(file)


def test_every_test_of_the_list_exists() -> None:
    for entry in read_list(LIST):
        file, _, name = entry.name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name.split("::")[-1].partition("[")[0] in functions, entry.name


def test_ci_retries_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line.startswith(("make ", "timeout "))]
    assert commands[:2] == ["make lint || failed=1", "make test || failed=1"]
    # The coverage run repeats tests, so it must not decide: it could hide or cause a failure.
    (coverage,) = commands[2:]
    assert coverage.startswith("timeout 30m make coverage || echo ")
    assert lines[-1] == 'exit "$failed"'
    makefile = (ROOT / "Makefile").read_text()
    assert "retest" not in makefile
    assert "--lf" not in makefile
