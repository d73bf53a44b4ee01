"""Seeds of random tests: printed by a test, and read from the environment to replay it."""

from __future__ import annotations

import os
import random
import sys


def choose_seed(variable: str) -> int:
    """Return the seed in the environment `variable` or a new one, and print it."""
    given = os.environ.get(variable)
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    report(f"{variable}={seed}")
    return seed


def report(line: str) -> None:
    """Print a line into the test's output."""
    sys.stdout.write(f"{line}\n")
