from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console

from harness.process.broker_process import wait_until
from millstream.cli.support.progress import progress


def test_quick_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("moving replicas", total=3) as shown:
        shown.advance()
        shown.update(3)
    assert capsys.readouterr().err == ""


def test_without_a_terminal_it_prints_a_line_for_each_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("millstream.cli.support.progress.note", lines.append)
    with progress("moving replicas", total=3, delay_s=0.01, interval_s=0.01) as shown:
        wait_until(lambda: lines, "the first line", 10)
        shown.advance(2)
        wait_until(lambda: len(lines) == 2, "the second line", 10)
        shown.restart("checking")
        wait_until(lambda: len(lines) == 3, "the third line", 10)
    assert lines == ["moving replicas: 0 of 3", "moving replicas: 2 of 3", "checking"]


class _Watched(io.StringIO):
    """A terminal that reports when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def write(self, text: str) -> int:
        if "replicas" in text:
            self.is_written.set()
        return super().write(text)


def test_on_a_terminal_it_is_a_bar() -> None:
    terminal = _Watched()
    console = Console(file=terminal, force_terminal=True, width=100)
    with progress("moving replicas", total=4, delay_s=0.01, console=console) as shown:
        shown.update(3)
        assert terminal.is_written.wait(10)
        deadline = time.monotonic() + 10
        while "3/4" not in terminal.getvalue():
            assert time.monotonic() < deadline, terminal.getvalue()
            terminal.is_written.clear()
            terminal.is_written.wait(1)
