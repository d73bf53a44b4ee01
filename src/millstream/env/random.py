"""Randomness: ids, jitter, placement. Seeded in the simulator, the system's in a broker."""

from __future__ import annotations

import random
from typing import TypeAlias

Random: TypeAlias = random.Random


def system_random() -> Random:
    """Randomness fit for ids that must not collide between processes."""
    return random.SystemRandom()
