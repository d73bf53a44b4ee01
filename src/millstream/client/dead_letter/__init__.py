"""Dead letters: reading what workers gave up, choosing among it, and sending it again once."""

from __future__ import annotations

from millstream.client.dead_letter.letter import DeadLetter, Selection
from millstream.client.dead_letter.replay import Outcome, Replay
from millstream.client.dead_letter.shelf import Shelf

__all__ = ["DeadLetter", "Outcome", "Replay", "Selection", "Shelf"]
