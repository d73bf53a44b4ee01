"""A supervisor that makes any of its tasks raise an error at its current await.

    supervisor = FaultSupervisor()
    ...
    supervisor.interrupt(supervisor.tasks[0], RuntimeError("injected"))

The awaited call raises the error, which passes through the task's own handlers like any other.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from millstream.env.supervisor import Policy, SupervisedTask, Supervisor, Work


class _Fault:
    """The error that one task raises next, if any."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: Exception | None = None

    def pop(self) -> Exception | None:
        error, self.error = self.error, None
        return error


class FaultSupervisor(Supervisor):
    """Supervises tasks and injects errors into them."""

    __slots__ = ("_faults",)

    def __init__(self) -> None:
        super().__init__()
        self._faults: dict[SupervisedTask, _Fault] = {}

    def start(
        self,
        name: str,
        work: Work,
        *,
        about: str = "",
        policy: Policy = Policy.RESTART,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> SupervisedTask:
        fault = _Fault()
        entry = super().start(
            name,
            partial(_run, work, fault),
            about=about,
            policy=policy,
            on_failure=on_failure,
        )
        self._faults[entry] = fault
        return entry

    def interrupt(self, entry: SupervisedTask, error: Exception) -> None:
        """Raise `error` in the task at its current await."""
        self._faults[entry].error = error
        entry.cancel()


async def _run(work: Work, fault: _Fault) -> None:
    await _interruptible(work(), fault)


@types.coroutine
def _interruptible(
    coroutine: Coroutine[Any, Any, None], fault: _Fault
) -> Generator[Any, Any, None]:
    """Run a coroutine; a cancellation that `fault` requested becomes its error."""
    task = asyncio.current_task()
    assert task is not None
    error: BaseException | None = None
    while True:
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration:
            return
        error = None
        try:
            yield awaited
        except asyncio.CancelledError as cancelled:
            error = fault.pop()
            if error is None:
                error = cancelled
            else:
                task.uncancel()
        except BaseException as raised:  # noqa: BLE001  # handed on
            error = raised
