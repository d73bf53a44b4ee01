"""A circuit breaker: while a dependency fails repeatedly, the worker pauses. Pure.

    closed --`failures` in a row--> open --`rest`--> half open --success--> closed
                                     ^                   | failure
                                     +-------------------+

Attempts that fail while the breaker is not closed do not count. So the messages stay in their topic
instead of becoming dead letters one after the other. The caller passes the time.
"""

from __future__ import annotations

from millstream.client.error import UsageError
from millstream.client.old_name import rejects_old_names


class Breaker:
    """Opens after `failures` failed attempts in a row, for `rest` seconds.

    `on` are the exceptions that the dependency causes. Other exceptions neither open nor close the
    breaker.
    """

    @rejects_old_names
    def __init__(
        self,
        failures: int = 20,
        rest: float = 30.0,
        on: tuple[type[BaseException], ...] = (Exception,),
    ) -> None:
        if failures < 1 or rest <= 0:
            raise UsageError(f"Breaker({failures}, {rest}): both must be greater than 0.")
        self._failures_max = failures
        self._rest_s = rest
        self._on = on
        self._failures = 0
        #: Nothing starts before this time. None: closed.
        self._open_until: float | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the breaker sets no limit."""
        return self._open_until is None

    def allowed(self, now: float) -> int | None:
        """Return how many attempts may run at once. None: the breaker sets no limit."""
        if self._open_until is None:
            return None
        return 1 if now >= self._open_until else 0

    def succeeded(self) -> None:
        """Close the breaker."""
        self._failures = 0
        self._open_until = None

    def failed(self, error: BaseException | str | None, now: float) -> bool:
        """Count a failed attempt. True if it does not count, because the dependency caused it."""
        if not isinstance(error, self._on):
            return False
        self._failures += 1
        if self._failures >= self._failures_max:
            self._open_until = now + self._rest_s
        return self._open_until is not None
