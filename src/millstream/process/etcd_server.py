"""An etcd member as a child process, and how members form a cluster."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.process.port import HOST, free_port
from millstream.process.readiness import responds
from millstream.process.server_process import ServerProcess

START_SECONDS_MAX: Final = 60.0
CALL_TIMEOUT_S: Final = 30.0
#: For data that need not survive a power cut.
NO_FSYNC: Final = ("--unsafe-no-fsync",)


def is_etcd_installed() -> bool:
    return shutil.which("etcd") is not None


class EtcdEndpoints(NamedTuple):
    """The addresses of a member: for clients, and for the other members."""

    host: str
    port: int
    peer_port: int

    @classmethod
    def free(cls) -> EtcdEndpoints:
        """Return endpoints on free ports of this machine."""
        return cls(HOST, free_port(), free_port())


class EtcdMember(ServerProcess):
    """One etcd process. `flags` are etcd's own; the data folder and the log are in `folder`."""

    def __init__(
        self, name: str, folder: Path, endpoints: EtcdEndpoints, flags: Sequence[str] = ()
    ) -> None:
        super().__init__(name, folder / f"{name}.log", START_SECONDS_MAX)
        self.data = folder / name
        self.host, self.port, self.peer_port = endpoints
        self.scheme = "http"
        self.flags = list(flags)
        #: All members of the cluster, as `--initial-cluster` names them; by default this one alone.
        self.initial_cluster = self.peer

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    @property
    def peer(self) -> str:
        return f"{self.name}={self._peer_url}"

    @property
    def _peer_url(self) -> str:
        return f"http://{self.host}:{self.peer_port}"

    def command(self) -> Sequence[str]:
        command = ["etcd", "--name", self.name, "--data-dir", str(self.data)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self._peer_url]
        command += ["--initial-advertise-peer-urls", self._peer_url]
        command += ["--initial-cluster", self.initial_cluster]
        return [*command, "--logger", "zap", "--log-outputs", "stderr", *self.flags]

    def is_ready(self) -> bool:
        """Whether the member is part of a quorum. etcd returns status 503 while it is not."""
        return responds(f"{self.url}/health")

    def status(self, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Return etcd's maintenance status of the member. Raises OSError."""
        return self._call("/v3/maintenance/status", {}, timeout_s)

    def is_leader(self, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        status = self.status(timeout_s)
        return bool(status.get("leader") == status["header"]["member_id"])

    def compact(self, revision: int) -> None:
        """Discard all changes before `revision`."""
        self._call("/v3/kv/compaction", {"revision": revision})

    def _call(
        self, path: str, body: dict[str, Any], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data)  # noqa: S310
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            return dict(json.load(response))


def join_members(members: Sequence[EtcdMember]) -> None:
    """Make members that were not started yet one cluster."""
    peers = ",".join(member.peer for member in members)
    for member in members:
        member.initial_cluster = peers


def store_address(members: Sequence[EtcdMember], prefix: str = "millstream") -> str:
    """Return the metadata store's address as `--metadata` takes it."""
    scheme = "etcds" if members[0].scheme == "https" else "etcd"
    return f"{scheme}://{','.join(member.address for member in members)}/{prefix}"
