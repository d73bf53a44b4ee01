"""Which messages may have killed a process, and how a worker handles them. Pure.

A partition's note (`note.py`) names its worker. Whoever finds the name of another worker knows that
this one died, or lost its session, without giving the partition up. What it had in progress is then
found out in three steps, each of which a death takes one further:

    unknown   for a while, messages start only after a committed note names them (`is_careful`)
    suspect   a message that a note named when a process died. It runs with nothing beside it in
              the process, so that a second death is its own doing and no bystander's.
    dead      a suspect whose deaths and attempts are as many as attempts are allowed

A partition that was given up in order, or whose worker lives, costs nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.client.record import Partition
from millstream.client.worker.in_flight import Board, Entry, Taken
from millstream.client.worker.offset_metadata import NOTED_MAX, Note

#: How long after a death messages that are read may be those that the dead process had.
_CAREFUL_S: Final = 30.0
#: The first death may have been a bystander's; from the second on, nothing else was in progress.
_DEATHS_CERTAIN: Final = 2


class Watch:
    """The caution about one partition."""

    __slots__ = ("deaths", "held", "is_leaving", "left", "running", "until")

    def __init__(self, note: Note, owner: str, window: int, now: float) -> None:
        has_died = note.owner not in (None, owner)
        self.deaths = dict(note.deaths)
        if has_died:
            for offset in note.running:
                self.deaths[offset] = self.deaths.get(offset, 0) + 1
        is_careful = has_died or note.is_careful
        #: Until then, so many of the messages that are read are careful ones.
        self.until = now + _CAREFUL_S if is_careful else 0.0
        self.left = window if is_careful else 0
        #: Careful messages that are unfinished.
        self.held = 0
        #: In progress, and named by a note that is committed or about to be.
        self.running: dict[int, None] = {}
        self.is_leaving = False


class Caution:
    def __init__(self, owner: str, attempts_max: int, window: int) -> None:
        self._owner = owner
        self._attempts_max = attempts_max
        self._window = window
        self._watches: dict[Partition, Watch] = {}
        #: Entries that the next note names.
        self._noting: list[Entry] = []
        #: A suspect that has run by itself, and that the note still names.
        self._past: Entry | None = None

    def open(self, partition: Partition, note: Note, now: float) -> None:
        self._watches[partition] = Watch(note, self._owner, self._window, now)

    def drop(self, partitions: Iterable[Partition], board: Board) -> None:
        for partition in partitions:
            self._watches.pop(partition, None)
            if board.alone is not None and board.alone.partition == partition:
                board.alone, board.is_quiet = None, False
            if self._past is not None and self._past.partition == partition:
                self._past, board.is_quiet = None, False

    def leave(self, partitions: Iterable[Partition]) -> None:
        """Their notes say from now on that they are given up in order."""
        for partition in partitions:
            if partition in self._watches:
                self._watches[partition].is_leaving = True

    def look_at(self, entry: Entry, now: float) -> bool:
        """Decide how to treat a message that was read; whether it is a dead letter at once."""
        watch = self._watches[entry.partition]
        if not watch.left and not watch.deaths:
            return False
        entry.deaths = watch.deaths.get(entry.offset, 0)
        entry.attempts += entry.deaths
        if entry.deaths or (watch.left and now < watch.until):
            entry.is_careful = True
            watch.left -= watch.left > 0
            watch.held += 1
        return entry.deaths >= _DEATHS_CERTAIN and entry.attempts >= self._attempts_max

    def settled(self, entry: Entry, board: Board) -> None:
        """An attempt at it has ended."""
        if not entry.is_careful:
            return
        watch = self._watches.get(entry.partition)
        if watch is not None:
            watch.running.pop(entry.offset, None)
        if entry is board.alone:
            # The note must not name it when others run.
            board.alone, self._past = None, entry

    def finished(self, entry: Entry) -> None:
        if not entry.is_careful:
            return
        watch = self._watches.get(entry.partition)
        if watch is not None:
            watch.held -= 1
            watch.deaths.pop(entry.offset, None)

    # Notes before messages start

    def plan(self, board: Board) -> set[Partition]:
        """Choose what starts next; the partitions whose notes have to be committed before."""
        if self._past is not None:
            return {self._past.partition}
        if board.alone is not None or not board.unnoted:
            return set()
        suspect = next((entry for entry in board.unnoted if entry.deaths), None)
        if suspect is None:
            self._noting = self._next_ones(board)
        else:
            board.is_quiet = True
            if board.running:
                return set()
            board.alone = suspect
            self._noting = [suspect]
        for entry in self._noting:
            board.unnoted.remove(entry)
            self._watches[entry.partition].running[entry.offset] = None
        return {entry.partition for entry in self._noting}

    def _next_ones(self, board: Board) -> list[Entry]:
        """Careful entries, as many of each partition as a note may name."""
        room = {each: NOTED_MAX - len(watch.running) for each, watch in self._watches.items()}
        chosen = []
        for entry in board.unnoted:
            if room[entry.partition] > 0:
                room[entry.partition] -= 1
                chosen.append(entry)
        return chosen

    def noted(self, board: Board, *, is_committed: bool) -> None:
        """What `plan` asked for is committed, or could not be."""
        noting, self._noting = self._noting, []
        if not is_committed:
            for entry in reversed(noting):
                if not entry.is_gone:
                    self._watches[entry.partition].running.pop(entry.offset, None)
                    board.unnoted.appendleft(entry)
            if board.alone in noting:
                board.alone = None
            return
        if self._past is not None:
            self._past, board.is_quiet = None, False
        for entry in noting:
            if not entry.is_gone:
                board.make_ready(entry)

    def note(self, partition: Partition, taken: Taken, board: Board, now: float) -> Note:
        """What a successor has to know of the partition."""
        watch = self._watches[partition]
        return Note(
            None if watch.is_leaving else self._owner,
            taken.end,
            taken.unfinished,
            watch.held > 0 or (watch.left > 0 and now < watch.until),
            tuple(watch.running),
            board.alone is not None and tuple(watch.running) == (board.alone.offset,),
            {offset: count for offset, count in watch.deaths.items() if offset >= taken.offset},
        )
