"""Dead letters: reading those of a topic, selecting among them, and replaying each once.

The package owns the format of `<topic>.dlq.replayed` and the selection of letters. The worker
writes the letters themselves.
"""

from __future__ import annotations

from millstream.client.dead_letter.dead_letter_topic import DeadLetterTopic
from millstream.client.dead_letter.letter import DeadLetter, Selection
from millstream.client.dead_letter.replay import Outcome, Replay

__all__ = ["DeadLetter", "DeadLetterTopic", "Outcome", "Replay", "Selection"]
