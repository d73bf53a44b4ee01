"""Callbacks in brokers that raise: when a response is encoded, and when an offset is acknowledged.

`begin` and `end` set which processes' callbacks raise, and how often. A response that can't be
encoded closes its connection. A callback of `when_acknowledged` raises after it has done its work:
the partition must still call the other callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from millstream.broker import session
from millstream.replication.partition import Partition
from sim.loop import CURRENT, Process
from sim.supervisor import InjectedError

#: The share of callbacks that raise and the source of randomness, by process.
_raising: Final[dict[Process, tuple[float, Random]]] = {}


def begin(process: Process, share: float, random: Random) -> None:
    _raising[process] = share, random


def end(process: Process) -> None:
    _raising.pop(process, None)


def _is_drawn() -> bool:
    process = CURRENT.get()
    if process is None or process not in _raising:
        return False
    share, random = _raising[process]
    return random.random() < share


def _install() -> None:
    encode, when_acknowledged = session._encode, Partition.when_acknowledged

    def raise_or_encode(slot: Any, response: Any) -> Any:
        if _raising and _is_drawn():
            raise InjectedError("in a response")
        return encode(slot, response)

    def wait(
        self: Partition, offset: int, callback: Callable[[], None], *rest: Any, **how: Any
    ) -> None:
        def call_and_raise() -> None:
            callback()
            if _raising and _is_drawn():
                raise InjectedError("in a callback")

        when_acknowledged(self, offset, call_and_raise, *rest, **how)

    session._encode = raise_or_encode
    Partition.when_acknowledged = wait  # type: ignore[method-assign]


_install()
