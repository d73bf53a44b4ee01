"""Keeps a consumer in its group while the application processes records.

librdkafka takes a consumer that does not poll for dead, and rebalances of its group wait for it. So
a thread polls, with all partitions paused, while the application has not polled for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

IDLE_S: Final = 1.0
_CHECK_S: Final = 0.25


class IdlePoller:
    """Calls `poll` from a thread while `idle_s()` is above `IDLE_S`."""

    def __init__(self, idle_s: Callable[[], float], poll: Callable[[], None]) -> None:
        self._idle_s = idle_s
        self._poll = poll
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-idle-poll", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_CHECK_S):
            if self._idle_s() > IDLE_S:
                self._poll()
