"""Seeds of random tests: told in the output of a test, taken from the environment to replay one."""

from __future__ import annotations

import os
import random
import sys


def choose_seed(variable: str) -> int:
    """The seed in the environment `variable`, or a new one; printed so that a failure shows it."""
    given = os.environ.get(variable)
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    report(f"{variable}={seed}")
    return seed


def report(line: str) -> None:
    """A line for whoever reads the test's output."""
    sys.stdout.write(f"{line}\n")
