"""TCP ports of server processes on this machine."""

from __future__ import annotations

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below the range from which the kernel takes ports for outgoing connections: while a server is
#: down, no client's connection can occupy its port.
PORTS: Final = range(11_000, 32_000)
#: The part of `PORTS` that this process chooses from. Processes that start servers at the same time
#: set disjoint parts, so that none takes a port that another has chosen and not bound yet.
available = PORTS
#: Ports that this process has chosen. Their servers may be down for a while.
_chosen: Final[set[int]] = set()


def free_port() -> int:
    """Return a port that no process listens on, that no outgoing connection can take, and that this
    process has not chosen before."""
    candidates = [port for port in available if port not in _chosen]
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        if _is_free(port):
            _chosen.add(port)
            return port
    raise OSError(
        f"no port from {available.start} to {available.stop - 1} is free: stop some servers"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
