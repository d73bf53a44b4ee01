"""Randomness for ids, jitter and placement: the system's in a broker, seeded in the simulator."""

from __future__ import annotations

import random
from typing import TypeAlias

Random: TypeAlias = random.Random


def system_random() -> Random:
    """Return randomness for ids that must not collide between processes."""
    return random.SystemRandom()
