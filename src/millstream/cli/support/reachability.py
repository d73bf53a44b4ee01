"""Whether something listens at an address: a quick check before slow work starts."""

from __future__ import annotations

import socket
from typing import Final

from millstream.cli.support.failure import no_connection

_CONNECT_S_MAX: Final = 10.0


def parse_address(text: str, port: int = 0) -> tuple[str, int]:
    """Return host and port; the port is 0 if it is not a number."""
    host, colon, number = text.strip().rpartition(":")
    if not colon:
        return text.strip(), port
    return host.strip("[]"), int(number) if number.isdecimal() else 0


def connect_error(host: str, port: int) -> str:
    """Return why no connection is possible; empty if one is."""
    try:
        socket.create_connection((host, port), _CONNECT_S_MAX).close()
    except OSError as error:
        return str(error)
    return ""


def require_broker(servers: str) -> None:
    """Raise CommandError if none of the brokers listens."""
    # PROTOCOL://HOST:PORT is allowed, as librdkafka allows it.
    addresses = [each.rpartition("://")[2] for each in servers.split(",") if each.strip()]
    first = ""
    for address in addresses:
        reason = connect_error(*parse_address(address))
        if not reason:
            return
        first = first or reason
    if addresses:
        raise no_connection(servers, first)
