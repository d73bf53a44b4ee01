"""Makes what tests share importable: `from harness.broker_process import BrokerProcess`."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parent)
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
