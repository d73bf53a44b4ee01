"""Handlers for SIGINT and SIGTERM: the callback, and the handlers that are restored."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from millstream.env.termination import (
    TERMINATION_SIGNALS,
    add_termination_handler,
    exit_at_sigterm,
    on_termination,
    preserved_interrupt_handler,
)


def send(number: signal.Signals) -> None:
    signal.raise_signal(number)


@pytest.mark.parametrize("number", TERMINATION_SIGNALS)
def test_a_signal_calls_back_and_the_handler_is_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in TERMINATION_SIGNALS]
    calls: list[str] = []
    with on_termination(lambda: calls.append("stop")):
        send(number)
        send(number)
    assert calls == ["stop", "stop"]
    assert [signal.getsignal(each) for each in TERMINATION_SIGNALS] == before


def test_the_second_signal_interrupts() -> None:
    calls: list[str] = []
    with on_termination(lambda: calls.append("stop"), interrupt_at_second=True):
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert calls == ["stop"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_program_s_own_handler_is_kept() -> None:
    def handler(_number: int, _frame: object) -> None:
        own.append("own")

    own: list[str] = []
    calls: list[str] = []
    before = signal.signal(signal.SIGTERM, handler)
    # A process that was started in the background ignores SIGINT.
    interrupt_before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with on_termination(lambda: calls.append("stop"), only_default=True):
            send(signal.SIGTERM)
            send(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt_before)
    assert (own, calls) == (["own"], ["stop"])


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with on_termination(pytest.fail, only_default=True):
            send(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_other_than_main_installs_no_handler() -> None:
    seen: list[object] = []

    def work() -> None:
        with on_termination(pytest.fail):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_an_event_loop_calls_back() -> None:
    async def run() -> None:
        stopped = asyncio.Event()
        add_termination_handler(asyncio.get_running_loop(), stopped.set)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stopped.wait()

    asyncio.run(run())


def test_a_program_exits_at_sigterm() -> None:
    before = signal.getsignal(signal.SIGTERM)
    exit_at_sigterm()
    try:
        with pytest.raises(SystemExit) as exit_:
            send(signal.SIGTERM)
        assert exit_.value.code == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_handler_of_interrupts_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with preserved_interrupt_handler():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before
