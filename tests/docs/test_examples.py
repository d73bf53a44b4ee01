"""The small programs in `examples/` do what they print."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.documents import REPOSITORY, Block
from docs.page_runner import Interpreter, page_environment
from harness.tool.java import require_java
from millstream import Consumer, LocalBroker

pytestmark = pytest.mark.xdist_group("docs")
LINES_MAX = 60
EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as made:
        yield made


def run(interpreter: Interpreter, folder: Path, call: str) -> str:
    """Run a call of an example's function in the interpreter and return its output."""
    module = call.partition("(")[0].rpartition(".")[0]
    interpreter.start_page(folder, page_environment(folder))
    code = f"import sys; sys.path.append({str(REPOSITORY)!r})\nimport {module}\n{call}"
    return interpreter.run(Block(module, 1, "python", code), code)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("hello", "b'carol' {'hello': 'carol'}"),
        ("dead_letters", "2 done, 1 dead"),
        ("exactly_once", "20 squares"),
        ("async_service", "b'alice' got b'HELLO ALICE'"),
    ],
)
def test_a_program(
    name: str, printed: str, interpreter: Interpreter, broker: LocalBroker, tmp_path: Path
) -> None:
    call = f"examples.{name}.main({broker.bootstrap_servers!r})"
    assert printed in run(interpreter, tmp_path, call)


def test_the_outbox(interpreter: Interpreter, tmp_path: Path) -> None:
    said = run(interpreter, tmp_path, "examples.outbox_sqlite.main()")
    assert "rejected: an order needs an item" in said
    assert said.count("to send:") == 1


def test_the_stream(interpreter: Interpreter, broker: LocalBroker, tmp_path: Path) -> None:
    require_java()
    call = f"examples.spark_stream.main({broker.bootstrap_servers!r})"
    run(interpreter, tmp_path, call)
    with Consumer(broker.bootstrap_servers, topics=["large-payments"]) as consumer:
        records = iter(consumer)
        assert len({next(records).value for _ in range(10)}) == 10


def test_the_tests(tmp_path: Path) -> None:
    path = tmp_path / "test_with_a_broker.py"
    path.write_text((EXAMPLES / path.name).read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "2 passed" in result.stdout, result.stdout


def test_examples_are_short_and_listed() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < LINES_MAX, path.name
        assert path.name == "__init__.py" or f"({path.name})" in readme, path.name
