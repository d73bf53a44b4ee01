"""The metadata of a committed offset: what the next worker of the partition must know. Pure.

A committed offset says "everything before me is finished". Kafka stores a text beside it, and the
worker writes the rest there. So it survives kill -9 and costs no request of its own:

    o   id of the worker that has the partition; absent once that worker gave the partition up
    h   end of the known range: messages from the offset to `h` are finished, except those in `u`
    u   unfinished messages from the offset on, each as the distance from the one before
    c   1 while the worker tracks messages: a process that had the partition before has died
    r   messages in progress, and a: 1 if nothing else was in progress in that process
    d   process deaths by message, for messages that were in progress at a death

Kafka limits metadata to 4,096 bytes (`offset.metadata.max.bytes`). `u` is shortened to fit, and `h`
with it: messages beyond `h` count as unfinished. `TRACKED_MAX` limits the other fields.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from millstream.client.record import OffsetAndMetadata

_PREFIX: Final = "millstream-worker "
#: For the list of unfinished messages.
_GAPS_CHARACTERS_MAX: Final = 2000
#: Tracked messages of a partition that are in progress at once.
TRACKED_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class OffsetMetadata:
    """The decoded metadata, with absolute offsets. Nothing is known from offset `end` on."""

    owner: str | None = None
    end: int = 0
    unfinished: tuple[int, ...] = ()
    is_tracking: bool = False
    running: tuple[int, ...] = ()
    is_exclusive: bool = False
    deaths: dict[int, int] = field(default_factory=dict)

    def at(self, offset: int) -> OffsetAndMetadata:
        """Return the offset to commit, with this metadata encoded."""
        fields: dict[str, Any] = {}
        if self.owner is not None:
            fields["o"] = self.owner
        if self.end > offset:
            fields["h"] = self.end - offset
            steps = itertools.pairwise((offset, *self.unfinished))
            fields["u"] = [following - before for before, following in steps]
        if self.is_tracking:
            fields["c"] = 1
        if self.running:
            fields["r"] = [each - offset for each in self.running]
            fields["a"] = int(self.is_exclusive)
        if self.deaths:
            fields["d"] = {str(each - offset): count for each, count in self.deaths.items()}
        if not fields:
            return OffsetAndMetadata(offset)
        return OffsetAndMetadata(offset, _PREFIX + json.dumps(fields, separators=(",", ":")))

    @classmethod
    def of(cls, committed: int | None) -> Self:
        """Decode the metadata of a committed offset. Text of other programs decodes as empty."""
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
            # Any program may write metadata. Without a worker's metadata, messages are processed
            # again.
            return cls()


def fit_unfinished(offset: int, unfinished: Iterable[int], end: int) -> tuple[tuple[int, ...], int]:
    """Return the unfinished messages that fit into the metadata, and the end of the known range."""
    room, before = _GAPS_CHARACTERS_MAX, offset
    found: list[int] = []
    for each in unfinished:
        room -= len(str(each - before)) + 1
        if room < 0:
            return tuple(found), each
        found.append(each)
        before = each
    return tuple(found), end
