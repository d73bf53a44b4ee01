"""TCP ports of server processes on this machine."""

from __future__ import annotations

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below the range from which the kernel takes ports for outgoing connections: while a server is
#: down, no client's connection can occupy its port.
PORTS: Final = range(11_000, 32_000)


def free_port() -> int:
    """Return a port that no process listens on and that no outgoing connection can take."""
    chooser = random.SystemRandom()
    while True:
        port = chooser.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
