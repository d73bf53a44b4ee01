"""Measures for how long a coroutine occupies the event loop."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

from millstream.env.clock import Clock

T = TypeVar("T")


class MeasuredWork(Generic[T]):
    """Awaits a coroutine. `seconds` is the time that it ran so far, without the time that it
    waited."""

    __slots__ = ("_clock", "_coroutine", "seconds")

    def __init__(self, coroutine: Coroutine[Any, Any, T], clock: Clock) -> None:
        self._coroutine: Final = coroutine
        self._clock: Final = clock
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, None, T]:
        coroutine, clock = self._coroutine, self._clock
        error: BaseException | None = None
        while True:
            began = clock.monotonic()
            try:
                waited = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += clock.monotonic() - began
            error = None
            try:
                yield waited
            except BaseException as raised:  # noqa: BLE001  # such as a cancellation: the coroutine's
                error = raised
