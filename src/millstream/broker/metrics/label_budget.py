"""The label budget: which groups have metrics rows of their own.

First come, first served, for as long as a group exists. A group keeps its rows from one round to
the next, so that series do not depend on the order in which groups are met. A name that is not safe
as a label gets no rows: a NUL ends a scrape, and a name of kilobytes would be repeated often.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.metrics.broker_metrics import OTHER

NAME_CHARACTERS_MAX: Final = 256


class LabelBudget:
    """Assigns at most `rows_max` rows. A round: `reserve` for each group, then `end_round`."""

    __slots__ = ("_reserved", "_rows_max", "_seen", "_used")

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        #: Rows by group, of this round and the last; their sum is `_used`.
        self._reserved: dict[str, int] = {}
        self._used = 0
        self._seen: set[str] = set()

    def reserve(self, group_id: str, rows: int = 1) -> bool:
        """Reserve rows for a group, all or none; return whether they are reserved."""
        used = self._used - self._reserved.get(group_id, 0) + rows
        if not is_showable(group_id) or used > self._rows_max:
            return False
        self._used = used
        self._reserved[group_id] = rows
        self._seen.add(group_id)
        return True

    def release(self, group_id: str) -> None:
        """Free the rows of one group now, for budgets without rounds."""
        self._used -= self._reserved.pop(group_id, 0)
        self._seen.discard(group_id)

    def end_round(self) -> None:
        """Free the rows of groups that were not in this round."""
        for group_id in self._reserved.keys() - self._seen:
            self._used -= self._reserved.pop(group_id)
        self._seen.clear()


def is_showable(group_id: str) -> bool:
    """Return whether the name is safe as a label."""
    return group_id != OTHER and len(group_id) <= NAME_CHARACTERS_MAX and group_id.isprintable()
