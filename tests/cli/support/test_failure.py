from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from confluent_kafka import KafkaError

from millstream.cli.support.failure import CommandError, ExitCode, from_kafka_error, guarded

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


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ExitCode.NOT_FOUND),
        (KafkaError._UNKNOWN_PARTITION, ExitCode.NOT_FOUND),
        (KafkaError.TOPIC_ALREADY_EXISTS, ExitCode.EXISTS),
        (KafkaError._TRANSPORT, ExitCode.NO_CONNECTION),
        (KafkaError._MSG_TIMED_OUT, ExitCode.NO_CONNECTION),
        (KafkaError.REQUEST_TIMED_OUT, ExitCode.NO_CONNECTION),
        (KafkaError.INVALID_CONFIG, ExitCode.FAILED),
        (KafkaError.MSG_SIZE_TOO_LARGE, ExitCode.FAILED),
    ],
)
def test_exit_codes_of_kafka_errors(error: int, code: ExitCode) -> None:
    assert from_kafka_error(KafkaError(error), "trying", "host:1").code is code


def test_sentences_of_kafka_errors() -> None:
    missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert "topic 'orders' does not exist" in str(from_kafka_error(missing, "x", "h:1", "orders"))
    refused = KafkaError(KafkaError.INVALID_CONFIG, "Broker: retention.ms is wrong.")
    assert str(from_kafka_error(refused, "cannot alter 'orders'", "h:1")) == (
        "cannot alter 'orders': retention.ms is wrong (INVALID_CONFIG)"
    )
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "all down")
    assert str(from_kafka_error(down, "x", "h:1")).startswith(
        "no response from h:1: all down. Is a"
    )


def test_a_failure_names_the_page_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    error = from_kafka_error(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "producing", "h:1")
    assert ending(raising(error)) == 1
    assert capsys.readouterr().err.endswith("\nSee: millstream docs errors#record-too-large\n")
