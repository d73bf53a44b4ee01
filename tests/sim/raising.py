"""Callbacks of brokers that raise: where responses are made, and where waits for offsets end.

Which processes' callbacks raise at present, and how often, is set by `begin` and `end`. A response
that can't be made ends its connection. A callback that waited for an offset raises after its work:
whoever called it must go on with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from millstream.broker import session
from millstream.replication.partition import Partition
from sim.loop import CURRENT, Process
from sim.supervisor import InjectedError

#: The share of callbacks that raise, by process.
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
