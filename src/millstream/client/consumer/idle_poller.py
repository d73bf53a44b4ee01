"""Keeps a consumer in its group while the application is busy with records.

librdkafka takes a consumer that does not poll for dead, and rebalances of its group wait for it. So
when the application has not come back for a while, a thread polls in its place, with everything
paused, until it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

IDLE_S: Final = 1.0
_LOOK_S: Final = 0.25


class Keeper:
    def __init__(self, idle_s: Callable[[], float], keep: Callable[[], None]) -> None:
        self._idle_s = idle_s
        self._keep = keep
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            if self._idle_s() > IDLE_S:
                self._keep()
