"""The small programs in `examples/` do what they print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.documents import REPOSITORY, Block
from docs.page_runner import Interpreter, page_environment
from harness.java import require_java
from millstream.testing.broker import LocalBroker

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
    code = f"import sys; sys.path.append({str(REPOSITORY)!r})\nimport asyncio, {module}\n{call}"
    return interpreter.run(Block(module, 1, "python", code), code)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("hello", "b'carol' {'hello': 'carol'}"),
        ("dead_letters", "2 done, 1 dead"),
        ("exactly_once", "20 squares"),
    ],
)
def test_a_program(
    name: str, printed: str, interpreter: Interpreter, broker: LocalBroker, tmp_path: Path
) -> None:
    call = f"examples.{name}.main({broker.bootstrap_servers!r})"
    assert printed in run(interpreter, tmp_path, call)


def test_the_service(interpreter: Interpreter, broker: LocalBroker, tmp_path: Path) -> None:
    call = f"asyncio.run(examples.async_service.main({broker.bootstrap_servers!r}))"
    interpreter.start_page(tmp_path, page_environment(tmp_path))
    code = f"import sys; sys.path.append({str(REPOSITORY)!r})\n"
    code += f"import asyncio, examples.async_service\n{call}"
    said = interpreter.run(Block("examples.async_service", 1, "python", code), code)
    assert "alice got HELLO ALICE" in said
    assert "bob got HELLO BOB" in said


def test_the_outbox(interpreter: Interpreter, tmp_path: Path) -> None:
    said = run(interpreter, tmp_path, "examples.outbox_sqlite.main()")
    assert "rejected: an order needs an item" in said
    assert said.count("to send:") == 1


def test_the_stream(interpreter: Interpreter, broker: LocalBroker, tmp_path: Path) -> None:
    require_java()
    call = f"examples.spark_stream.main({broker.bootstrap_servers!r})"
    assert "written to the topic totals" in run(interpreter, tmp_path, call)


def test_the_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile((EXAMPLES / "test_with_a_broker.py").read_text())
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_examples_are_short_and_listed() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < LINES_MAX, path.name
        assert path.name == "__init__.py" or f"({path.name})" in readme, path.name
