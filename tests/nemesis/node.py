"""The processes under attack: etcd members and brokers, each on its own node of the network.

Owns a process's life (start, `kill -9`, SIGSTOP, SIGTERM) and what a broker has of its own: a small
disk that can be filled, and a clock that can be set wrong. What a process says goes to a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemesis.network import Network

CLIENT_PORT = 9092
HTTP_PORT = 9644
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
_DISK_BYTES = 192 * 1024 * 1024
#: Moves the wall clock alone: leases and timers run on the monotonic one.
_FAKETIME = ("libfaketime.so.1", "libfaketimeMT.so.1")


class Node:
    """One process on one node."""

    def __init__(self, name: str, folder: Path, network: Network) -> None:
        self.name = name
        self.network = network
        self.address = network.add(name)
        self.log_path = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether it is meant to run.
        self.is_wanted = False

    def _start(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        assert self._process is None, f"{self.name} runs already"
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self.network.inside(self.name, command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **variables},
            )
        self.is_wanted = True

    def start(self) -> None:
        raise NotImplementedError

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        process, self._process = self._process, None
        self.is_wanted = False
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self, seconds_max: float) -> int:
        """SIGTERM; its exit code."""
        process, self._process = self._process, None
        assert process is not None, f"{self.name} does not run"
        self.is_wanted = False
        process.terminate()
        try:
            return process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return -signal.SIGKILL

    def _signal(self, number: int) -> None:
        assert self._process is not None, f"{self.name} does not run"
        self._process.send_signal(number)


class EtcdNode(Node):
    """`peers`: name and address of every member, filled in before the first start."""

    def __init__(self, name: str, folder: Path, network: Network, peers: dict[str, str]) -> None:
        super().__init__(name, folder, network)
        self._data = folder / name
        self._peers = peers
        peers[name] = self.address

    @property
    def url(self) -> str:
        return f"http://{self.address}:{ETCD_PORT}"

    def start(self) -> None:
        peer = f"http://{self.address}:{ETCD_PEER_PORT}"
        members = ",".join(
            f"{name}=http://{address}:{ETCD_PEER_PORT}" for name, address in self._peers.items()
        )
        command = ["etcd", "--name", self.name, "--data-dir", str(self._data)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", members, "--unsafe-no-fsync"]
        command += ["--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"]
        self._start(command, {})


class BrokerNode(Node):
    """`settings` by their Kafka names."""

    def __init__(
        self, number: int, folder: Path, network: Network, settings: Mapping[str, object]
    ) -> None:
        super().__init__(f"broker-{number}", folder, network)
        self.number = number
        self._settings = {"node.id": number, **settings}
        self._disk = folder / f"disk-{number}"
        self._filler = self._disk / "filler"
        self._clock = folder / f"clock-{number}"
        self._clock.write_text("+0")
        self._disk.mkdir()
        size = f"size={_DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(self._disk)], check=True)

    @property
    def bootstrap(self) -> str:
        return f"{self.address}:{CLIENT_PORT}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self.address}:{HTTP_PORT}/metrics"

    def start(self) -> None:
        command = [sys.executable, "-m", "millstream.cli.main", "serve"]
        command += ["--data", str(self._disk / "data"), "--listen", self.bootstrap]
        command += ["--http", f"{self.address}:{HTTP_PORT}"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        self._start(command, self._clock_variables())

    def _clock_variables(self) -> dict[str, str]:
        library = faketime_library()
        if library is None:
            return {}
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
        }

    def set_clock(self, seconds: int) -> None:
        """Let its wall clock be that far off from now on."""
        changed = self._clock.with_suffix(".new")
        changed.write_text(f"{seconds:+d}")
        changed.replace(self._clock)

    def fill_disk(self) -> None:
        """Leave no room: not for a record, a checkpoint or a new file."""
        chunk = bytes(64 * 1024)
        with self._filler.open("ab", buffering=0) as file:
            try:
                while file.write(chunk) > 0:
                    pass
            except OSError:
                return

    def clear_disk(self) -> None:
        self._filler.unlink(missing_ok=True)


def faketime_library() -> Path | None:
    """libfaketime, if it is installed."""
    for folder in (Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu*")):
        for name in _FAKETIME:
            if (library := folder / "faketime" / name).exists():
                return library
    return None
