"""Dead letters: reading what workers gave up, choosing among it, and sending it again once."""

from __future__ import annotations

from millstream.client.dead_letter.dead_letter_topic import DeadLetterTopic
from millstream.client.dead_letter.letter import DeadLetter, Selection
from millstream.client.dead_letter.replay import Outcome, Replay

__all__ = ["DeadLetter", "DeadLetterTopic", "Outcome", "Replay", "Selection"]
