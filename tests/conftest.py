"""Makes `tests/harness` importable, and groups the tests that share fixtures.

One worker runs all tests of a group. `harness.duration` decides which group runs first. Tests that
use a database have the mark `xdist_group("databases")`, so that only one worker starts it.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from harness.process.services import postgres, redis_address  # noqa: E402 -- can be imported now
from millstream.process import port  # noqa: E402 -- after the path of the harness

pytest_plugins = ["harness.quarantine", "harness.duration"]
__all__ = ["postgres", "redis_address"]

# Every process that a test starts would compile hundreds of modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Their own conftest says which of their tests stay together.
_TOGETHER = ("client", "conformance", "spark", "transactions_clients")
#: In the names of tests that run on three brokers, as `harness.process.brokers` gives them.
_ON_THREE = "three brokers"
#: Long tests that share nothing.
_APART = ("crash", "settings", "sim/test_seeds.py")


#: Workers of all runs on this machine that choose ports from a part of their own.
_WORKERS_MAX = 16
_PORT_LOCKS = Path(tempfile.gettempdir()) / f"millstream-test-ports-{os.getuid()}"
#: Locked while this process runs: no other worker chooses from the same part.
_port_locks: list[int] = []

# Nearly all objects that collection creates stay until the end.
gc.disable()


def pytest_configure() -> None:
    number = _lock_ports()
    size = len(port.PORTS) // _WORKERS_MAX
    port.available = port.PORTS[number * size : (number + 1) * size]


def _lock_ports() -> int:
    """Return the number of a part of the ports that no other worker has, also of other runs. If
    all parts are taken, return any."""
    _PORT_LOCKS.mkdir(exist_ok=True)
    numbers = list(range(_WORKERS_MAX))
    random.SystemRandom().shuffle(numbers)
    for number in numbers:
        lock = os.open(_PORT_LOCKS / str(number), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            _port_locks.append(lock)
            return number
    return numbers[0]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of a file, which share fixtures. Tests on three brokers share nothing with
    tests on one broker, so they are a group of their own."""
    for item in items:
        name = _name(item.path)
        if item.get_closest_marker("xdist_group") is None and not _is_in(name, _TOGETHER + _APART):
            group = f"{name} on three" if _ON_THREE in item.name else name
            item.add_marker(pytest.mark.xdist_group(group))


@functools.cache
def _name(path: Path) -> str:
    return path.relative_to(_TESTS).as_posix()


@functools.cache
def _is_in(name: str, places: tuple[str, ...]) -> bool:
    return any(f"{name}/".startswith(f"{place}/") for place in places)
