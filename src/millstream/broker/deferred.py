"""An answer that comes later, without a task: what a handler returns when it has to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Deferred:
    """Completed once, by whoever the handler left it with; cancelled when the client has gone.

    `on_cancel` lets the waiting side let go of what it holds (timers, watches)."""

    __slots__ = ("_callback", "on_cancel", "response")

    def __init__(self) -> None:
        self.response: Any = None
        self._callback: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None

    def complete(self, response: Any) -> None:
        self.response = response
        self.on_cancel = None
        if self._callback is not None:
            self._callback()

    def then(self, callback: Callable[[], None]) -> None:
        """Have `callback` called on completion. Called at most once, and before that happens."""
        self._callback = callback

    def cancel(self) -> None:
        self._callback = None
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()
