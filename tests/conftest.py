"""Makes what tests share importable (`from harness.broker_process import BrokerProcess`), and hands
tests out to workers so that none is left with a long one in the end. Tests that use a database have
the mark `xdist_group("databases")`, so that one process starts it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from harness.services import postgres, redis_address  # noqa: E402 -- can be imported now

__all__ = ["postgres", "redis_address"]

# A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Begun before all others, those that take longest first.
_LONG = (
    "nemesis",
    "spark",
    "client",
    "conformance",
    "transactions_clients",
    "cli",
    "sim",
    "group_clients",
    "crash",
    "broker/test_metadata_store.py",
    "metadata/test_etcd.py",
    "groups/test_clients.py",
    "transactions/test_clients.py",
    "broker/test_transaction_cluster.py",
    "fuzz",
    "scale",
)
#: Their own conftest says which of their tests stay together.
_TOGETHER = ("client", "conformance", "spark")
#: Long tests that share nothing.
_APART = ("crash", "sim/test_seeds.py", "transactions_clients")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, for the fixtures that they share."""
    for item in items:
        is_placed = item.get_closest_marker("xdist_group") is not None
        if not is_placed and not _is_in(item, _TOGETHER + _APART):
            item.add_marker(pytest.mark.xdist_group(_path(item)))
    items.sort(key=_rank)


def _path(item: pytest.Item) -> str:
    return item.path.relative_to(_TESTS).as_posix()


def _is_in(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return any((_path(item) + "/").startswith(place + "/") for place in places)


def _rank(item: pytest.Item) -> int:
    """Of the first place that it is in."""
    return next((n for n, place in enumerate(_LONG) if _is_in(item, (place,))), len(_LONG))
