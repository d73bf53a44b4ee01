"""Makes what tests share importable (`from harness.broker_process import BrokerProcess`), and hands
tests out to workers so that none is left with a long one in the end. Tests that use a database have
the mark `xdist_group("databases")`, so that one process starts it."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from harness.services import postgres, redis_address  # noqa: E402 -- can be imported now

pytest_plugins = ["harness.quarantine"]
__all__ = ["postgres", "redis_address"]

# A shell's background jobs ignore it, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Begun before all others. A worker is given its next work before it has finished what it has, so
#: what comes after the two tests of the nemesis waits for them: a few short ones.
_LONG_GROUPS = (
    "spark",
    "client",
    "conformance",
    "conformance-cluster",
    "kafka-tools-parity",
    "kafka-tools",
    "group_clients/test_members.py on three",
    "nemesis",
    "sim/test_history.py",
)
#: Begun next, those that take longest first.
_LONG = (
    "spark/pipeline",
    "spark",
    "kafka_connect",
    "kafka_streams",
    "transactions_clients",
    "client",
    "conformance",
    "docs",
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
_TOGETHER = ("client", "conformance", "spark", "transactions_clients")
#: In the names of tests that run on three brokers, as `harness.brokers` gives them.
_ON_THREE = "three brokers"
#: Long tests that share nothing.
_APART = ("crash", "settings", "sim/test_seeds.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Keep the tests of a file together, for the fixtures that they share. Those on three brokers
    share nothing with those on one."""
    for item in items:
        name = _name(item.path)
        if _group(item) is None and not _is_in(name, _TOGETHER + _APART):
            group = f"{name} on three" if _ON_THREE in item.name else name
            item.add_marker(pytest.mark.xdist_group(group))
    yield
    items.sort(key=_rank)


def _group(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("xdist_group")
    return None if marker is None else str(marker.args[0])


@functools.cache
def _name(path: Path) -> str:
    return path.relative_to(_TESTS).as_posix()


@functools.cache
def _is_in(name: str, places: tuple[str, ...]) -> bool:
    return any(f"{name}/".startswith(f"{place}/") for place in places)


def _rank(item: pytest.Item) -> tuple[int, int]:
    """Of its group, then of the first place that it is in."""
    group, name = _group(item), _name(item.path)
    of_group = _LONG_GROUPS.index(group) if group in _LONG_GROUPS else len(_LONG_GROUPS)
    of_place = next((n for n, place in enumerate(_LONG) if _is_in(name, (place,))), len(_LONG))
    return of_group, of_place
