from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer

from millstream.cli.support.failure import CommandError, ExitCode, guarded

if TYPE_CHECKING:
    from collections.abc import Callable


def ending(command: Callable[[], object]) -> int:
    with pytest.raises(typer.Exit) as caught:
        guarded(command)()
    return caught.value.exit_code


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def test_a_failure_prints_a_sentence_and_sets_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = ending(raising(CommandError(ExitCode.NOT_FOUND, "no such thing.")))
    assert code == 3
    assert capsys.readouterr() == ("", "error: no such thing.\n")


def test_an_interrupt_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


def test_other_exceptions_are_not_caught() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(raising(ZeroDivisionError()))()


def test_the_result_is_returned() -> None:
    assert guarded(lambda: 5)() == 5


def test_a_failure_names_the_page_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    error = CommandError(ExitCode.FAILED, "too large.", "errors#record-too-large")
    assert ending(raising(error)) == 1
    assert capsys.readouterr().err.endswith("\nSee: millstream docs errors#record-too-large\n")
