"""Address and credentials of an etcd cluster: `etcd://host:port,host:port/prefix`.

Parses the address; no I/O. `etcds://` selects TLS. Every key of the Millstream cluster begins with
the prefix, so several clusters can share an etcd. The default prefix is `/millstream`. The address
has no password, because logs and clients see it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PREFIX_DEFAULT: Final = "millstream"
PORT_DEFAULT: Final = 2379
ENDPOINTS_MAX: Final = 32

_ADDRESS: Final = re.compile(r"(?P<scheme>etcds?)://(?P<endpoints>[^/]*)(?P<path>/.*)?\Z")
_ENDPOINT: Final = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?\Z"
)
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*\Z")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The URLs of the etcd members, without a path, and the prefix of all keys."""

    urls: tuple[str, ...]
    #: Begins and ends with a slash.
    root: str

    @property
    def uses_tls(self) -> bool:
        return self.urls[0].startswith("https:")

    def __str__(self) -> str:
        return ", ".join(url.partition("://")[2] for url in self.urls)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """The address, TLS files, credentials and timeouts of the connections to etcd."""

    address: EtcdAddress
    #: Authorities that sign the members' certificates; None for those of the system.
    ca_file: Path | None = None
    #: The broker's own certificate, for members that require one.
    certificate_file: Path | None = None
    key_file: Path | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    #: Limits for one attempt at one member, and for a call with all its attempts.
    attempt_ms_max: int = 3_000
    call_ms_max: int = 10_000


def parse_etcd_address(text: str) -> EtcdAddress:
    """Parse an address; ValueError with the allowed form if it is invalid."""
    match = _ADDRESS.match(text)
    if match is None:
        raise ValueError("etcd://host:port,host:port/prefix, or etcds:// for TLS")
    if "@" in match["endpoints"]:
        raise ValueError(
            "an address without a user: set metadata.etcd.username and metadata.etcd.password.file"
        )
    protocol = "https" if match["scheme"] == "etcds" else "http"
    urls = tuple(f"{protocol}://{_parse_endpoint(item)}" for item in match["endpoints"].split(","))
    if len(urls) > ENDPOINTS_MAX:
        raise ValueError(f"at most {ENDPOINTS_MAX} etcd members")
    if len(set(urls)) != len(urls):
        raise ValueError("etcd members with different addresses")
    return EtcdAddress(urls, _parse_root(match["path"] or ""))


def _parse_endpoint(text: str) -> str:
    match = _ENDPOINT.match(text.strip())
    if match is None or not 0 < int(match["port"] or PORT_DEFAULT) <= 65535:
        raise ValueError("etcd members as host:port, separated by commas, IPv6 in brackets")
    return f"{match['host']}:{match['port'] or PORT_DEFAULT}"


def _parse_root(path: str) -> str:
    prefix = path.strip("/") or PREFIX_DEFAULT
    if not _PREFIX.match(prefix):
        raise ValueError("a prefix of letters, digits, '.', '_', '-' and '/'")
    return f"/{prefix}/"
