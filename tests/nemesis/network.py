"""A network that can be cut: every node has a network namespace and a virtual cable to a router.

Owns the namespaces and the routes between them. The router is the namespace of this process (see
`enclosure`), so everything ends with the process. A cut makes the router drop packets in one
direction between two nodes silently: no process gets an error. Processes in the router's namespace
(the clients) reach every node regardless of cuts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROUTER = "10.77.0.1"
_IPV4 = Path("/proc/sys/net/ipv4")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """The nodes, by name, and the cuts between them."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._cuts: set[tuple[str, str]] = set()
        # Namespace names are files in /run, which other processes must not see.
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        (_IPV4 / "ip_forward").write_text("1")
        # A cut in one direction must not affect the other.
        for scope in ("all", "default"):
            (_IPV4 / "conf" / scope / "rp_filter").write_text("0")
        _ip("link", "set", "lo", "up")

    def add(self, name: str) -> str:
        """Create a node, and return its address."""
        address = f"10.77.0.{len(self.addresses) + 2}"
        cable = f"v-{name}"
        _ip("netns", "add", name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("address", "add", f"{ROUTER}/32", "dev", cable)
        _ip("link", "set", cable, "up")
        _ip("route", "add", address, "dev", cable, "src", ROUTER)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "address", "add", f"{address}/32", "dev", "eth0")
        _ip("-n", name, "route", "add", ROUTER, "dev", "eth0", "scope", "link")
        _ip("-n", name, "route", "add", "default", "via", ROUTER)
        self.addresses[name] = address
        return address

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command as it runs on a node."""
        return ["ip", "netns", "exec", name, *command]

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from `source` to `target`."""
        if (source, target) not in self._cuts:
            self._rule("add", source, target)
            self._cuts.add((source, target))

    def restore(self, source: str, target: str) -> None:
        if (source, target) in self._cuts:
            self._rule("del", source, target)
            self._cuts.remove((source, target))

    def _rule(self, verb: str, source: str, target: str) -> None:
        _ip("rule", verb, "from", self.addresses[source], "to", self.addresses[target], "blackhole")
