"""Progress on standard error, for work that takes more than two seconds.

On a terminal it is a bar, otherwise lines of text at a low rate. Quick work shows nothing. Results
belong on standard output and are not printed here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from millstream.cli.support.terminal import error_console, note

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

DELAY_S: Final = 2.0
#: The time between lines if standard error is not a terminal.
LINE_INTERVAL_S: Final = 5.0

T = TypeVar("T")


@dataclass(slots=True)
class _State:
    """The progress as last reported."""

    what: str
    done: float
    #: None if the amount of work is not known.
    total: float | None

    def line(self) -> str:
        if self.total is None:
            return f"{self.what}: {self.done:,.0f}" if self.done else self.what
        return f"{self.what}: {self.done:,.0f} of {self.total:,.0f}"


@dataclass(frozen=True, slots=True)
class _View:
    """Where and when progress is shown."""

    console: Console
    delay_s: float
    interval_s: float
    #: Whether to print lines without a terminal.
    lines: bool
    #: Returns the work that is done, for work that does not report it.
    count: Callable[[], float] | None


class Progress:
    """The progress of one piece of work. Its methods may be called from any thread."""

    __slots__ = ("_lock", "_stop", "_thread", "_view", "state")

    def __init__(self, state: _State, view: _View) -> None:
        self.state = state
        self._view = view
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def update(
        self,
        done: float | None = None,
        *,
        total: float | None = None,
        what: str | None = None,
    ) -> None:
        """Report the work that is done, the whole amount, or the current step."""
        with self._lock:
            if done is not None:
                self.state.done = done
            if total is not None:
                self.state.total = total
            if what is not None:
                self.state.what = what

    def restart(self, what: str, *, done: float = 0, total: float | None = None) -> None:
        """Begin another step, whose amount of work may be unknown."""
        with self._lock:
            self.state = _State(what, done, total)

    def advance(self, count: float = 1) -> None:
        """Report that `count` more units are done."""
        with self._lock:
            self.state.done += count

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items. Each counts as done when the next one is requested."""
        for item in items:
            yield item
            self.advance()

    def _begin(self) -> None:
        self._thread.start()

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _show(self) -> None:
        if self._stop.wait(self._view.delay_s):
            return
        if self._view.console.is_terminal:
            self._show_bar()
        elif self._view.lines:
            self._print_lines()

    def _current(self) -> _State:
        with self._lock:
            if self._view.count is not None:
                self.state.done = self._view.count()
            return replace(self.state)

    def _print_lines(self) -> None:
        last = None
        while True:
            text = self._current().line()
            if text != last:
                note(text)
                last = text
            if self._stop.wait(self._view.interval_s):
                return

    def _show_bar(self) -> None:
        with _bar(self._view.console) as bar:
            task = bar.add_task(self.state.what, total=self.state.total)
            while True:
                now = self._current()
                # `update` cannot set an unknown total again.
                bar.tasks[0].total = now.total
                bar.update(task, description=now.what, completed=now.done)
                if self._stop.wait(0.1):
                    return


def _bar(console: Console) -> Bar:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bar

    return Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Data on standard output must not go to the console of standard error.
        redirect_stdout=False,
    )


@contextmanager
def progress(
    what: str,
    *,
    total: float | None = None,
    count: Callable[[], float] | None = None,
    lines: bool = True,
    delay_s: float = DELAY_S,
    interval_s: float = LINE_INTERVAL_S,
    console: Console | None = None,
) -> Iterator[Progress]:
    """Show the progress of the work in the block, once it has taken `delay_s`.

    `count` returns the work that is done, instead of calls of `update`. Without `lines`, nothing
    is shown unless standard error is a terminal."""
    view = _View(console or error_console(), delay_s, interval_s, lines, count)
    found = Progress(_State(what, 0, total), view)
    found._begin()  # noqa: SLF001
    try:
        yield found
    finally:
        found._end()  # noqa: SLF001
