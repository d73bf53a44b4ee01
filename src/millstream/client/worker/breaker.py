"""A circuit breaker: when a dependency fails again and again, the worker rests. Pure.

    closed --`failures` in a row--> open --`rest_s`--> trying --success--> closed
                                     ^                   | failure
                                     +-------------------+

Attempts that fail while it is not closed do not count: the messages stay where they are instead of
becoming dead letters one after the other. The clock is the caller's.
"""

from __future__ import annotations

from millstream.client.error import UsageError


class Breaker:
    """`on` are the exceptions that speak of the dependency; others neither open nor close it."""

    def __init__(
        self,
        failures: int = 20,
        rest_s: float = 30.0,
        on: tuple[type[BaseException], ...] = (Exception,),
    ) -> None:
        if failures < 1 or rest_s <= 0:
            raise UsageError(f"Breaker({failures}, {rest_s}): both are greater than 0.")
        self._failures_max = failures
        self._rest_s = rest_s
        self._on = on
        self._failures = 0
        #: Until when nothing starts; None when closed.
        self._open_until: float | None = None

    @property
    def is_closed(self) -> bool:
        return self._open_until is None

    def allowed(self, now: float) -> int | None:
        """How many may run at once; None where the breaker sets no limit."""
        if self._open_until is None:
            return None
        return 1 if now >= self._open_until else 0

    def succeeded(self) -> None:
        self._failures = 0
        self._open_until = None

    def failed(self, error: BaseException | str | None, now: float) -> bool:
        """Whether the attempt is not to count, because the dependency is to blame."""
        if not isinstance(error, self._on):
            return False
        self._failures += 1
        if self._failures >= self._failures_max:
            self._open_until = now + self._rest_s
        return self._open_until is not None
