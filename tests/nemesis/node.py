"""The processes under attack: etcd members and brokers, each on its own node of the network.

A broker has its own small disk, which a fault can fill, and a wall clock, which a fault can shift.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from millstream.process.broker_server import BrokerEndpoints, BrokerServer
from millstream.process.etcd_server import NO_FSYNC, EtcdEndpoints, EtcdMember
from nemesis.network import Network

CLIENT_PORT = 9092
HTTP_PORT = 9644
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
_DISK_BYTES = 192 * 1024 * 1024
#: Shifts the wall clock only: leases and timers use the monotonic clock.
_FAKETIME = ("libfaketime.so.1", "libfaketimeMT.so.1")


class EtcdNode(EtcdMember):
    """An etcd member on its own network node."""

    def __init__(self, name: str, folder: Path, network: Network) -> None:
        endpoints = EtcdEndpoints(network.add(name), ETCD_PORT, ETCD_PEER_PORT)
        super().__init__(name, folder, endpoints, [*NO_FSYNC, "--log-level", "warn"])
        self.network = network

    def command(self) -> Sequence[str]:
        return self.network.inside(self.name, super().command())


class BrokerNode(BrokerServer):
    """A broker on its own network node, disk and clock. `settings` have their Kafka names."""

    def __init__(
        self, number: int, folder: Path, network: Network, settings: Mapping[str, object]
    ) -> None:
        name = f"broker-{number}"
        endpoints = BrokerEndpoints(network.add(name), CLIENT_PORT, HTTP_PORT)
        super().__init__(name, folder, endpoints, {"node.id": number, **settings})
        self.number = number
        self.network = network
        self._disk = folder / f"disk-{number}"
        self._filler = self._disk / "filler"
        self._clock = folder / f"clock-{number}"
        self._clock.write_text("+0")
        self._disk.mkdir()
        size = f"size={_DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(self._disk)], check=True)
        self.data = self._disk / "data"

    @property
    def metrics_url(self) -> str:
        return f"{self.http_url}/metrics"

    def command(self) -> Sequence[str]:
        return self.network.inside(self.name, super().command())

    def environment(self) -> Mapping[str, str]:
        library = faketime_library()
        if library is None:
            return os.environ
        return {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
        }

    def set_clock(self, seconds: int) -> None:
        """Shift the broker's wall clock by this many seconds."""
        changed = self._clock.with_suffix(".new")
        changed.write_text(f"{seconds:+d}")
        changed.replace(self._clock)

    def fill_disk(self) -> None:
        """Leave no room for a record, a checkpoint or a new file."""
        chunk = bytes(64 * 1024)
        with self._filler.open("ab", buffering=0) as file:
            try:
                while file.write(chunk) > 0:
                    pass
            except OSError:
                return

    def clear_disk(self) -> None:
        self._filler.unlink(missing_ok=True)


Node: TypeAlias = EtcdNode | BrokerNode


def faketime_library() -> Path | None:
    """Return the path of libfaketime, or None if it is not installed."""
    for folder in (Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu*")):
        for name in _FAKETIME:
            if (library := folder / "faketime" / name).exists():
                return library
    return None
