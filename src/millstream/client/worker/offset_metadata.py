"""The note that a worker keeps beside a partition's committed offset, in Kafka's metadata. Pure.

A committed offset says "everything before me is finished". The note adds the rest that a successor
has to know, also after kill -9, and it is written with the offset, so it costs no request of its
own:

    o   id of the worker that has the partition; missing once it has given the partition up in order
    h   end of what is known: messages from the offset to `h` are finished, except those in `u`
    u   unfinished messages from the offset on, each as the distance from the one before
    c   1 while the worker is careful: a process that had the partition before has died
    r   messages in progress, and a: 1 if nothing else was in progress in that process
    d   process deaths by message, for messages that were in progress at a death

Kafka limits metadata to 4,096 bytes (`offset.metadata.max.bytes`). `u` is cut to fit, and `h` with
it: messages beyond `h` count as unfinished. The other fields are limited by `NOTED_MAX`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from millstream.client.record import NotedOffset

_PREFIX: Final = "millstream-worker "
#: For the list of unfinished messages.
_GAPS_CHARACTERS_MAX: Final = 2000
#: Messages of a partition that a careful worker has in progress at once.
NOTED_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Note:
    """All offsets are absolute here. `end` is the first offset of which nothing is known."""

    owner: str | None = None
    end: int = 0
    unfinished: tuple[int, ...] = ()
    is_careful: bool = False
    running: tuple[int, ...] = ()
    is_alone: bool = False
    deaths: dict[int, int] = field(default_factory=dict)

    def at(self, offset: int) -> NotedOffset:
        """The offset to commit, with this note."""
        fields: dict[str, Any] = {}
        if self.owner is not None:
            fields["o"] = self.owner
        if self.end > offset:
            fields["h"] = self.end - offset
            steps = itertools.pairwise((offset, *self.unfinished))
            fields["u"] = [following - before for before, following in steps]
        if self.is_careful:
            fields["c"] = 1
        if self.running:
            fields["r"] = [each - offset for each in self.running]
            fields["a"] = int(self.is_alone)
        if self.deaths:
            fields["d"] = {str(each - offset): count for each, count in self.deaths.items()}
        if not fields:
            return NotedOffset(offset)
        return NotedOffset(offset, _PREFIX + json.dumps(fields, separators=(",", ":")))

    @classmethod
    def of(cls, committed: int | None) -> Self:
        """The note beside a committed offset; an empty one where there is none of ours."""
        text = getattr(committed, "metadata", "").rstrip("\0")
        if committed is None or not text.startswith(_PREFIX):
            return cls()
        offset = int(committed)
        try:
            fields = json.loads(text.removeprefix(_PREFIX))
            steps = itertools.accumulate(fields.get("u", ()), initial=offset)
            return cls(
                fields.get("o"),
                offset + fields["h"] if "h" in fields else 0,
                tuple(steps)[1:],
                bool(fields.get("c")),
                tuple(offset + each for each in fields.get("r", ())),
                bool(fields.get("a")),
                {offset + int(each): count for each, count in fields.get("d", {}).items()},
            )
        except (ValueError, TypeError, AttributeError):
            # Anybody may write metadata. Without a note, messages are processed again.
            return cls()


def fitting(offset: int, unfinished: Iterable[int], end: int) -> tuple[tuple[int, ...], int]:
    """As many of the unfinished messages as a note has room for, and the end of what it knows."""
    room, before = _GAPS_CHARACTERS_MAX, offset
    found: list[int] = []
    for each in unfinished:
        room -= len(str(each - before)) + 1
        if room < 0:
            return tuple(found), each
        found.append(each)
        before = each
    return tuple(found), end
