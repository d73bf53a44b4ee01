"""SIGINT and SIGTERM: the one module that installs handlers for them.

A command or a worker wraps its work in `on_termination`. A process that runs an event loop calls
`add_termination_handler` instead: its callback runs between two steps of the loop. A program that
only has to clean up calls `exit_at_sigterm`.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # The CLI imports this module at every start.
    import asyncio

TERMINATION_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: The handlers that Python installs at start.
_DEFAULT_HANDLERS: Final = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def on_termination(
    callback: Callable[[], object],
    *,
    signals: Sequence[signal.Signals] = TERMINATION_SIGNALS,
    interrupt_at_second: bool = False,
    only_default: bool = False,
) -> Iterator[None]:
    """Call `callback` when one of `signals` arrives; restore the previous handlers at exit.

    `interrupt_at_second`: the second signal raises KeyboardInterrupt instead.
    `only_default`: leave a signal alone that is ignored or that the program handles itself.
    Outside the main thread, where Python installs no handlers, this does nothing."""
    is_called = False

    def handle(_number: int, _frame: object) -> None:
        nonlocal is_called
        if is_called and interrupt_at_second:
            raise KeyboardInterrupt
        is_called = True
        callback()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {
        number: handler
        for number in signals
        if (handler := signal.getsignal(number)) in _DEFAULT_HANDLERS or not only_default
    }
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_at_sigterm() -> None:
    """Raise SystemExit at SIGTERM, so that `finally` blocks run. For the rest of the process."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


@contextmanager
def preserved_interrupt_handler() -> Iterator[None]:
    """Restore the handler of SIGINT at exit, if the block has installed another one.

    Outside the main thread, where Python installs no handlers, this does nothing."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def add_termination_handler(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], object]
) -> None:
    """Call `callback` on `loop` at every SIGINT and SIGTERM."""
    for number in TERMINATION_SIGNALS:
        loop.add_signal_handler(number, callback)
