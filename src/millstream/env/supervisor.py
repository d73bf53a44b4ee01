"""The owner of a broker's background tasks: no task dies unseen.

Every long-lived task of a broker runs under one `Supervisor`. A task that raises is logged with its
traceback and with what it worked on, and is counted by name. Its policy decides what follows:

    RESTART   the work begins again, after a rest of 0.1 s that doubles up to 30 s with each failure
              in a row. A run of more than a minute ends the row. The work must be able to begin
              from any state that an interrupted run leaves.
    STOP      the work can't begin again safely: `on_fatal` shuts the broker down in order
    REPORT    the work is finite, and its owner starts it again when it is needed

Work that returns has ended, and leaves the registry. A `CancelledError` ends a task only if the
task itself was cancelled. One that comes out of something the work waited for is a failure as any
other: otherwise a cancelled future would end a task without a trace.

Tasks belong to the parts that start them, which stop them. The supervisor knows which tasks there
are (`tasks`) and how often each name has failed (`failures`). Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Final, TypeAlias

_logger = logging.getLogger(__name__)

_REST_S_MIN: Final = 0.1
_REST_S_MAX: Final = 30.0
#: A run of this length counts as healthy: the next failure rests as briefly as the first.
_HEALTHY_S: Final = 60.0

#: Failures of a name that are logged in `_LOG_WINDOW_S`; the others are only counted.
_LOGGED_MAX: Final = 10
_LOG_WINDOW_S: Final = 60.0

#: Makes the coroutine of one run.
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Policy(Enum):
    """What follows when a task raises."""

    RESTART = "it begins again in %g s"
    STOP = "the broker shuts down"
    REPORT = "it is not repeated"


class SupervisedTask:
    """One task of the registry. Made by `Supervisor.start`."""

    __slots__ = ("_task", "about", "is_resting", "name", "on_failure", "policy", "runs")

    def __init__(
        self,
        name: str,
        about: str,
        policy: Policy,
        on_failure: Callable[[Exception], None] | None,
    ) -> None:
        self.name = name
        #: What the task works on, where there are several of its name.
        self.about = about
        self.policy = policy
        self.on_failure = on_failure
        #: How often the work has begun.
        self.runs = 0
        #: Whether the work has failed and has not begun again.
        self.is_resting = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._task = asyncio.get_running_loop().create_task(run, name=str(self))
        return self._task

    def __str__(self) -> str:
        return f"{self.name} ({self.about})" if self.about else self.name

    @property
    def is_done(self) -> bool:
        """Whether the work has ended and will not begin again."""
        return self._task is not None and self._task.done()

    def cancel(self) -> None:
        """End the task soon. May be called more than once."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """End the task, and return when it has ended."""
        self.cancel()
        await self.ended()

    async def ended(self) -> None:
        """Return when the task has ended, for whichever reason."""
        if self._task is not None:
            await asyncio.wait([self._task])


class Supervisor:
    """See the module's text."""

    __slots__ = ("_logged", "_tasks", "failures", "on_fatal")

    def __init__(self) -> None:
        #: A dict for its order: the simulator's runs depend on it.
        self._tasks: dict[SupervisedTask, None] = {}
        #: By name, when a window of logging began and how much was logged in it.
        self._logged: dict[str, tuple[float, int]] = {}
        #: Failures by name of task, also of names that never failed.
        self.failures: dict[str, int] = {}
        #: Called when a task failed whose policy is STOP.
        self.on_fatal: Callable[[Exception], None] = lambda _: None

    @property
    def tasks(self) -> list[SupervisedTask]:
        """The tasks that have not ended, in the order of their start."""
        return list(self._tasks)

    def start(
        self,
        name: str,
        work: Work,
        *,
        about: str = "",
        policy: Policy = Policy.RESTART,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> SupervisedTask:
        """Run `work` in a task. `name` is a label of the metric: one of few.

        `on_failure` is called at each failure, before the policy is applied."""
        entry = SupervisedTask(name, about, policy, on_failure)
        self.expect(name)
        self._tasks[entry] = None
        task = entry.begin(self._supervise(entry, work))
        task.add_done_callback(lambda _: self._tasks.pop(entry, None))
        return entry

    def expect(self, name: str) -> None:
        """Show a name in the metric before anything of it was started or reported."""
        self.failures.setdefault(name, 0)

    def report(self, name: str, error: Exception, about: str = "") -> None:
        """Log and count a failure that does not end a task: of a timer, or of one partition out of
        many. There may be many in a row, so that only the first few of a minute are logged."""
        self._count(name, error)
        now = asyncio.get_running_loop().time()
        begun_at, count = self._logged.get(name, (now, 0))
        if now - begun_at >= _LOG_WINDOW_S:
            begun_at, count = now, 0
        self._logged[name] = begun_at, count + 1
        if count < _LOGGED_MAX:
            _logger.error("background work %s failed at %s", name, about, exc_info=error)

    async def close(self) -> None:
        """End the tasks that nobody has stopped."""
        for entry in self.tasks:
            await entry.stop()

    async def _supervise(self, entry: SupervisedTask, work: Work) -> None:
        loop = asyncio.get_running_loop()
        rest_s = _REST_S_MIN
        while True:
            entry.runs += 1
            entry.is_resting = False
            begun_at = loop.time()
            try:
                await work()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                assert task is not None
                if task.cancelling():
                    raise
                failure = RuntimeError("what the task waited for was cancelled")
                failure.__cause__ = error
                rest_s = self._next_rest_s(rest_s, loop.time() - begun_at, entry.runs)
                self._failed(entry, failure, rest_s)
            except Exception as error:  # noqa: BLE001  # logged and counted
                rest_s = self._next_rest_s(rest_s, loop.time() - begun_at, entry.runs)
                self._failed(entry, error, rest_s)
            else:
                return
            if entry.policy is not Policy.RESTART:
                return
            entry.is_resting = True
            await asyncio.sleep(rest_s)

    def _count(self, name: str, error: Exception) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1

    def _next_rest_s(self, rest_s: float, ran_s: float, runs: int) -> float:
        if runs == 1 or ran_s >= _HEALTHY_S:
            return _REST_S_MIN
        return min(rest_s * 2, _REST_S_MAX)

    def _failed(self, entry: SupervisedTask, error: Exception, rest_s: float) -> None:
        self._count(entry.name, error)
        policy = entry.policy
        follows = policy.value % rest_s if policy is Policy.RESTART else policy.value
        _logger.error("background task %s failed; %s", entry, follows, exc_info=error)
        if entry.on_failure is not None:
            try:
                entry.on_failure(error)
            except Exception:  # logged: the policy is applied all the same
                _logger.exception("background task %s could not clean up after its failure", entry)
        if policy is Policy.STOP:
            self.on_fatal(error)
