"""Runs the blocks of a page, in order, in a folder of their own.

Python blocks of a page share a namespace, in one interpreter for all pages. Each block of commands
has a shell of its own. Blocks that define tests (`def test_`) are run by pytest.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from docs.documents import Block
from docs.interpreter_program import END

#: Below the time limit of a test. Spark needs minutes on a machine that is very busy.
SECONDS_MAX = 280.0
_BIN = Path(sys.executable).parent


#: Spark starts once for all pages. Small, for a machine with two cores.
_SPARK = {
    "SPARK_MASTER": "local[2]",
    "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g --conf spark.ui.enabled=false"
    " --conf spark.sql.shuffle.partitions=2 pyspark-shell",
}


def page_environment(folder: Path) -> dict[str, str]:
    """Return the environment of blocks: this Python's commands, and no settings of the person who
    runs the tests."""
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "XDG_CONFIG_HOME": str(folder), "NO_COLOR": "1", "COLUMNS": "120"}
    others = {name: text for name, text in os.environ.items() if not name.startswith("MILLSTREAM_")}
    return {**others, **own, **_SPARK}


class Interpreter:
    """A Python process that runs blocks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("interpreter_program.py")
        return subprocess.Popen(
            [sys.executable, "-u", program],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def start_page(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Start a page with an empty namespace. A process that a block has ended is replaced."""
        if self._process.poll() is not None:
            self.close()
            self._process = self._start()
        self._send({"page": True, "cwd": str(folder), "environment": dict(environment)})

    def run(self, block: Block, code: str) -> str:
        """Run a block and return its output. Raises AssertionError if it fails."""
        self._send({"code": code, "name": str(block)})
        assert self._process.stdout is not None
        said: list[str] = []
        is_interrupted = False
        with _deadline(self._process):
            for line in self._process.stdout:
                if line.startswith(END):
                    return _checked(block, "".join(said), line.removeprefix(END).strip())
                said.append(line)
                if block.mode == "until" and block.text in line and not is_interrupted:
                    is_interrupted = True
                    self._process.send_signal(signal.SIGINT)
        raise AssertionError(f"{block}: no end within {SECONDS_MAX} s:\n{''.join(said)}")

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()


def _checked(block: Block, output: str, outcome: str) -> str:
    is_expected = outcome != "failed" and (block.mode == "until" or not outcome)
    assert is_expected, f"{block}: {outcome}:\n{output}"
    assert block.text in output or block.mode != "until", f"{block}: {output}"
    return output


@contextmanager
def _deadline(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill the process if the block takes too long; its output then ends."""
    timer = threading.Timer(SECONDS_MAX, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class PageRunner:
    """The state of a page: its folder, its environment and its background processes."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        replaced: Mapping[str, str],
        interpreter: Interpreter,
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._replaced = replaced
        self._interpreter = interpreter
        self._background: list[subprocess.Popen[str]] = []
        #: Blocks that define tests.
        self._tests: list[Block] = []
        self._output = ""
        # The documents name the commands of a checkout.
        (folder / ".venv").symlink_to(_BIN.parent)
        interpreter.start_page(folder, environment)

    def run(self, block: Block) -> None:
        """Run a block. Raises AssertionError with its output if it fails."""
        code = block.code
        for old, new in self._replaced.items():
            code = code.replace(old, new)
        if block.language == "stop":
            self._stop(signal.SIGINT)
        elif block.mode == "output":
            _assert_printed(block, code, self._output)
        elif block.file_name is not None:
            path = self._folder / block.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        elif block.language == "python" and re.search(r"^def test_", code, re.MULTILINE):
            path = self._folder / f"test_line_{block.line}.py"
            path.write_text(code)
            self._tests.append(block)
        elif block.language == "python":
            self._output = self._interpreter.run(block, code)
        else:
            self._output = self._run_commands(block, code)

    def run_tests(self) -> None:
        """Run the blocks that define tests. All at once, because pytest starts slowly."""
        if self._tests:
            command = f"{sys.executable} -m pytest -q -p no:cacheprovider test_line_*.py"
            self._run_commands(self._tests[0], command)

    def close(self) -> None:
        """Stop the background blocks."""
        self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        stopped, self._background = self._background, []
        for process in stopped:
            _signal(process, number)
        for process in stopped:
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.communicate()

    def _run_commands(self, block: Block, code: str) -> str:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        if block.mode == "background":
            self._background.append(process)
            return _wait_until_ready(process, process.stdout, block)
        said = []
        is_interrupted = False
        with _deadline(process), process:
            for line in process.stdout:
                said.append(line)
                if block.mode == "until" and block.text in line and not is_interrupted:
                    is_interrupted = True
                    _signal(process, signal.SIGINT)
        output = "".join(said)
        is_expected = process.returncode == 0 or block.mode == "until"
        assert is_expected, f"{block}: exit code {process.returncode}:\n{output}"
        assert block.text in output or block.mode != "until", f"{block}: {output}"
        return output


def _signal(process: subprocess.Popen[str], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def _wait_until_ready(process: subprocess.Popen[str], output: IO[str], block: Block) -> str:
    said = []
    with _deadline(process):
        for line in output:
            said.append(line)
            if block.text in line:
                # The process must be able to print more.
                threading.Thread(target=output.read, daemon=True).start()
                return "".join(said)
    raise AssertionError(f"{block}: ended before it was ready:\n{''.join(said)}")


def _assert_printed(block: Block, expected: str, output: str) -> None:
    """Each expected line must occur, in order. `...` stands for any text."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    for line in expected.splitlines():
        pattern = re.escape(" ".join(line.split())).replace(r"\.\.\.", ".*")
        while lines and not re.fullmatch(pattern, lines[0]):
            lines.pop(0)
        assert lines, f"{block}: {line!r} is not in the output, or not in this order:\n{output}"
