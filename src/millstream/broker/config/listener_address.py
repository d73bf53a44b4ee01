"""Parses addresses in settings: `NAME://host:port` lists, `host:port`, metadata stores.

Every function raises ValueError with what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from millstream.metadata.cluster_record import Endpoint
from millstream.metadata.store.etcd.address import parse_etcd_address
from millstream.model.security_protocol import SecurityProtocol

#: The metadata store in the data directory, for a cluster of one broker.
EMBEDDED_STORE: Final = "sqlite"
#: Hosts that mean every address of the machine. Clients cannot connect to them.
WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104

_LISTENER = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)://(?P<address>.*)\Z")
_ADDRESS = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>\d{1,5})\Z"
)


def parse_address(text: str) -> tuple[str, int]:
    """Parse `host:port`, `[ipv6]:port`, or `:port` for every address."""
    match = _ADDRESS.match(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("host:port with a port from 0 to 65535, and an IPv6 host in brackets")
    return match["ipv6"] or match["host"] or "", int(match["port"])


def parse_listeners(items: Iterable[str]) -> tuple[Endpoint, ...]:
    """Parse `NAME://host:port` items, whose names and addresses must differ."""
    endpoints: list[Endpoint] = []
    for item in items:
        match = _LISTENER.match(item)
        if match is None:
            raise ValueError("a comma-separated list of NAME://host:port")
        endpoints.append(Endpoint(match["name"].upper(), *parse_address(match["address"])))
    if len({endpoint.listener_name for endpoint in endpoints}) != len(endpoints):
        raise ValueError("listeners with different names")
    bound = [(endpoint.host, endpoint.port) for endpoint in endpoints if endpoint.port]
    if len(set(bound)) != len(bound):
        raise ValueError("listeners with different addresses")
    return tuple(endpoints)


def format_endpoint(endpoint: Endpoint) -> str:
    """Return `NAME://host:port`, with an IPv6 host in brackets."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener_name}://{host}:{endpoint.port}"


def parse_pairs(items: Iterable[str], what: str) -> dict[str, str]:
    """Parse `key:value` items. The value follows the last colon, because a key may be IPv6."""
    pairs: dict[str, str] = {}
    for item in items:
        key, colon, value = item.rpartition(":")
        if not colon or not key or not value:
            raise ValueError(f"a comma-separated list of {what}")
        pairs[key.strip()] = value.strip()
    return pairs


def check_listeners(value: tuple[str, ...]) -> None:
    if not parse_listeners(value):
        raise ValueError("at least one NAME://host:port")


def check_advertised(value: tuple[str, ...]) -> None:
    for endpoint in parse_listeners(value):
        if endpoint.host in WILDCARD_HOSTS:
            raise ValueError("addresses that clients can connect to, not every address at once")


def check_protocols(value: tuple[str, ...]) -> None:
    parse_protocols(value)


def parse_protocols(value: Iterable[str]) -> dict[str, SecurityProtocol]:
    """Parse `NAME:PROTOCOL` items, by name in upper case."""
    found: dict[str, SecurityProtocol] = {}
    for name, protocol in parse_pairs(value, "NAME:PROTOCOL").items():
        try:
            found[name.upper()] = SecurityProtocol(protocol.upper())
        except ValueError:
            allowed = ", ".join(each.value for each in SecurityProtocol)
            raise ValueError(f"one of {allowed} for {name}") from None
    return found


def check_http(value: str) -> None:
    if value:
        parse_address(value)


def check_overrides(value: tuple[str, ...]) -> None:
    for limit in parse_pairs(value, "address:count").values():
        if not limit.isdecimal():
            raise ValueError("a comma-separated list of address:count")


def check_store(value: str) -> None:
    if value == EMBEDDED_STORE:
        return
    if not value.startswith(("etcd:", "etcds:")):
        raise ValueError("sqlite, or etcd://host:port,host:port/prefix")
    parse_etcd_address(value)
