"""Values that do not compress, as Kafka's ProducerPerformance sends them."""

from __future__ import annotations

import random


def random_lines(count: int, size: int) -> list[bytes]:
    """Return lines of random capital letters, the same ones every time."""
    letters = bytes(random.Random(1).choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=count * size))
    return [letters[at : at + size] for at in range(0, count * size, size)]
