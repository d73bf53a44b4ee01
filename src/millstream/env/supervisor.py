"""The supervisor of a broker's background tasks: no task dies unnoticed.

Every long-lived task of a broker runs under one `Supervisor`. A task that raises is logged with its
traceback and its subject, and counted by name. Then its policy applies:

    RESTART   the work restarts, after a pause of 0.1 s that doubles up to 30 s with each failure in
              a row. A run of more than a minute ends the row. The work must be able to start from
              any state that an interrupted run leaves.
    STOP      the work can't restart safely: `on_fatal` shuts the broker down in order
    REPORT    the work is finite, and its owner starts it again when it is needed

Work that returns has ended, and leaves the registry. A `CancelledError` ends a task only if the
task itself was cancelled. If an awaited future was cancelled, that is a failure like any other.
Otherwise it would end a task without a trace.

The part that starts a task also stops it. The supervisor lists the tasks (`tasks`) and counts the
failures of each name (`failures`). Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Final, TypeAlias

_logger = logging.getLogger(__name__)

_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 30.0
#: A run of this length counts as healthy: the pause after its failure is the shortest one.
_HEALTHY_S: Final = 60.0

#: Failures of one name that are logged in `_LOG_WINDOW_S`; further ones are only counted.
_LOGGED_MAX: Final = 10
_LOG_WINDOW_S: Final = 60.0

#: Returns the coroutine of one run.
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Policy(Enum):
    """What happens when a task raises; the values are log texts."""

    RESTART = "it restarts in %g s"
    STOP = "the broker shuts down"
    REPORT = "it is not repeated"


class SupervisedTask:
    """One background task, created by `Supervisor.start`."""

    __slots__ = ("_task", "about", "is_pausing", "name", "on_failure", "policy", "runs")

    def __init__(
        self,
        name: str,
        about: str,
        policy: Policy,
        on_failure: Callable[[Exception], None] | None,
    ) -> None:
        self.name = name
        #: The task's subject, if several tasks have its name.
        self.about = about
        self.policy = policy
        self.on_failure = on_failure
        #: Number of runs.
        self.runs = 0
        #: Whether the work has failed and not restarted yet.
        self.is_pausing = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._task = asyncio.get_running_loop().create_task(run, name=str(self))
        return self._task

    def __str__(self) -> str:
        return f"{self.name} ({self.about})" if self.about else self.name

    @property
    def is_done(self) -> bool:
        """Whether the work has ended and will not restart."""
        return self._task is not None and self._task.done()

    def cancel(self) -> None:
        """Cancel the task. May be called more than once."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Cancel the task, and return when it has ended."""
        self.cancel()
        await self.ended()

    async def ended(self) -> None:
        """Return when the task has ended, for whichever reason."""
        if self._task is not None:
            await asyncio.wait([self._task])


class Supervisor:
    """The background tasks of one broker."""

    __slots__ = ("_logged", "_tasks", "failures", "on_fatal")

    def __init__(self) -> None:
        #: A dict, because the simulator's runs depend on the order.
        self._tasks: dict[SupervisedTask, None] = {}
        #: Start of the present log window, and failures in it, by name.
        self._logged: dict[str, tuple[float, int]] = {}
        #: Failures by task name, 0 for names that never failed.
        self.failures: dict[str, int] = {}
        #: Called when a task with policy STOP fails.
        self.on_fatal: Callable[[Exception], None] = lambda _: None

    @property
    def tasks(self) -> list[SupervisedTask]:
        """The tasks that have not ended, in start order."""
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
        """Run `work` in a task. `name` is a metric label, so there must be few of them.

        `on_failure` is called at each failure, before the policy is applied."""
        entry = SupervisedTask(name, about, policy, on_failure)
        self.expect(name)
        self._tasks[entry] = None
        task = entry.begin(self._supervise(entry, work))
        task.add_done_callback(lambda _: self._tasks.pop(entry, None))
        return entry

    def expect(self, name: str) -> None:
        """Add a name to the metric before its first start or failure."""
        self.failures.setdefault(name, 0)

    def report(self, name: str, error: Exception, about: str = "") -> None:
        """Log and count a failure that does not end a task: of a timer, or of one partition among
        many. Only the first few of a minute are logged."""
        self._count(name, error)
        now = asyncio.get_running_loop().time()
        started_at, count = self._logged.get(name, (now, 0))
        if now - started_at >= _LOG_WINDOW_S:
            started_at, count = now, 0
        self._logged[name] = started_at, count + 1
        if count < _LOGGED_MAX:
            _logger.error("background work %s failed at %s", name, about, exc_info=error)

    async def close(self) -> None:
        """Stop the tasks that are still running."""
        for entry in self.tasks:
            await entry.stop()

    async def _supervise(self, entry: SupervisedTask, work: Work) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S_MIN
        while True:
            entry.runs += 1
            entry.is_pausing = False
            started_at = loop.time()
            try:
                await work()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                assert task is not None
                if task.cancelling():
                    raise
                failure = RuntimeError("an awaited future was cancelled")
                failure.__cause__ = error
                pause_s = self._next_pause_s(pause_s, loop.time() - started_at, entry.runs)
                self._failed(entry, failure, pause_s)
            except Exception as error:  # noqa: BLE001  # logged and counted
                pause_s = self._next_pause_s(pause_s, loop.time() - started_at, entry.runs)
                self._failed(entry, error, pause_s)
            else:
                return
            if entry.policy is not Policy.RESTART:
                return
            entry.is_pausing = True
            await asyncio.sleep(pause_s)

    def _count(self, name: str, error: Exception) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1

    def _next_pause_s(self, pause_s: float, ran_s: float, runs: int) -> float:
        if runs == 1 or ran_s >= _HEALTHY_S:
            return _PAUSE_S_MIN
        return min(pause_s * 2, _PAUSE_S_MAX)

    def _failed(self, entry: SupervisedTask, error: Exception, pause_s: float) -> None:
        self._count(entry.name, error)
        policy = entry.policy
        follows = policy.value % pause_s if policy is Policy.RESTART else policy.value
        _logger.error("background task %s failed; %s", entry, follows, exc_info=error)
        if entry.on_failure is not None:
            try:
                entry.on_failure(error)
            except Exception:  # logged; the policy still applies
                _logger.exception("background task %s could not clean up after its failure", entry)
        if policy is Policy.STOP:
            self.on_fatal(error)
