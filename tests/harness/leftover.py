"""Collects the sockets that clients leave open after a connection that failed.

Otherwise the garbage collector finds them in a later test, which fails with a ResourceWarning.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting(logger_name: str) -> Iterator[None]:
    """Collect what the client with this logger leaves behind in the block.

    The block must not raise, and no variable may refer to the client after it. The client logs
    nothing meanwhile: pytest keeps log records until the test ends, and their errors keep frames.
    """
    logger = logging.getLogger(logger_name)
    former = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(former)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
