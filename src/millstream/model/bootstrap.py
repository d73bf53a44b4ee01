"""The default address of brokers, which all clients share."""

from __future__ import annotations

from typing import Final

SERVERS_VARIABLE: Final = "MILLSTREAM_BOOTSTRAP_SERVERS"
SERVERS_DEFAULT: Final = "127.0.0.1:9092"
