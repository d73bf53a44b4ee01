"""Makes what tests share importable: `from harness.broker_process import BrokerProcess`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

_TESTS = str(Path(__file__).parent)
if _TESTS not in sys.path:
    sys.path.append(_TESTS)

# A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
