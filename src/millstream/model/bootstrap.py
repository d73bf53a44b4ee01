"""The default address of a broker, which brokers and all clients share."""

from __future__ import annotations

from typing import Final

SERVERS_VARIABLE: Final = "MILLSTREAM_BOOTSTRAP_SERVERS"
PORT_DEFAULT: Final = 9092
SERVERS_DEFAULT: Final = f"127.0.0.1:{PORT_DEFAULT}"
