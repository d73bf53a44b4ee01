"""Callbacks of brokers that raise: where responses are made, and where waits for offsets end.

Which processes' callbacks raise at present, and how often, is set by `begin` and `end`. A callback
of a request may raise before it has done anything: the request gets an error, or its connection
ends. Any other one raises after its work: only who called it can tell.
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
            is_drawn = bool(_raising) and _is_drawn()
            if is_drawn and rest and rest[0] is not None:
                raise InjectedError("in a callback of a request")
            callback()
            if is_drawn:
                raise InjectedError("in a callback")

        when_acknowledged(self, offset, call_and_raise, *rest, **how)

    session._encode = raise_or_encode
    Partition.when_acknowledged = wait  # type: ignore[method-assign]


_install()
