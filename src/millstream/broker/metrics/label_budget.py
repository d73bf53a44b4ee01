"""Which groups have metrics rows of their own: first come, first served, for as long as they live.

A place is kept from one round to the next, so that series do not come and go with the order in
which groups are met. Names that a label can't hold safely get no place: a NUL ends a scrape, and
nobody wants a name of kilobytes a thousand times.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.metrics.broker_metrics import OTHER

NAME_CHARACTERS_MAX: Final = 256


class LabelBudget:
    """Rows for `rows_max` in all. Rounds: `take` for each group there is, then `end_round`."""

    __slots__ = ("_rows_max", "_seen", "_taken", "_used")

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        #: Rows by group, over this round and the last; their sum is `_used`.
        self._taken: dict[str, int] = {}
        self._used = 0
        self._seen: set[str] = set()

    def take(self, group_id: str, rows: int = 1) -> bool:
        """Whether the group may show so many rows; all of them or none."""
        used = self._used - self._taken.get(group_id, 0) + rows
        if not is_showable(group_id) or used > self._rows_max:
            return False
        self._used = used
        self._taken[group_id] = rows
        self._seen.add(group_id)
        return True

    def release(self, group_id: str) -> None:
        """Give up one place at once, where there are no rounds."""
        self._used -= self._taken.pop(group_id, 0)
        self._seen.discard(group_id)

    def end_round(self) -> None:
        """Give the places of groups that were not seen to others."""
        for group_id in self._taken.keys() - self._seen:
            self._used -= self._taken.pop(group_id)
        self._seen.clear()


def is_showable(group_id: str) -> bool:
    return group_id != OTHER and len(group_id) <= NAME_CHARACTERS_MAX and group_id.isprintable()
