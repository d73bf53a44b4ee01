"""Makes what tests share importable: `from harness.broker_process import BrokerProcess`. Tests that
use a database have the mark `xdist_group("databases")`, so that one process starts it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

_TESTS = str(Path(__file__).parent)
if _TESTS not in sys.path:
    sys.path.append(_TESTS)

from harness.services import postgres, redis_address  # noqa: E402 -- can be imported now

__all__ = ["postgres", "redis_address"]

# A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
