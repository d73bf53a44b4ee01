"""TCP ports of server processes on this machine."""

from __future__ import annotations

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below the range from which the kernel takes ports for outgoing connections: while a server is
#: down, no client's connection can occupy its port.
PORTS: Final = range(11_000, 32_000)
#: The part of `PORTS` that this process chooses from, without gaps. Processes that start servers at
#: the same time set disjoint parts, so that none takes a port that another has chosen and not bound
#: yet.
available = PORTS
#: Ports that this process has chosen. Their servers may be down for a while.
_chosen: Final[set[int]] = set()


def free_port(in_a_row: int = 1) -> int:
    """Return a port that no process listens on, that no outgoing connection can take, and that this
    process has not chosen before: the first of `in_a_row` such ports."""
    firsts = list(available[: len(available) - in_a_row + 1])
    random.SystemRandom().shuffle(firsts)
    for first in firsts:
        ports = range(first, first + in_a_row)
        if _chosen.isdisjoint(ports) and all(map(_is_free, ports)):
            _chosen.update(ports)
            return first
    raise OSError(
        f"no {in_a_row} ports in a row from {available.start} to {available.stop - 1} are free: "
        "stop some servers"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
