"""An etcd of one or more members as child processes, which tests kill, stop and start again.

    with EtcdCluster(tmp_path, size=3) as etcd:
        etcd.members[0].kill()
        ...EtcdStore at etcd.address("some-prefix")...

Data is not synced to disk: tests kill processes, they do not cut the power.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from harness.broker_process import HOST, free_port, wait_until

_INSTALL = Path(__file__).resolve().parents[2] / "scripts" / "install-system-packages"
_START_SECONDS_MAX = 60.0


def require_etcd() -> None:
    """Skip the calling test, with the reason, where etcd could not be installed."""
    if shutil.which("etcd") is None:
        result = subprocess.run([str(_INSTALL), "etcd-server"], capture_output=True, text=True)
        if shutil.which("etcd") is None:
            pytest.skip(f"etcd is not available: {' '.join(result.stderr.split())}")


class EtcdMember:
    """One process. `flags` are etcd's own."""

    def __init__(self, folder: Path, name: str, flags: Sequence[str] = ()) -> None:
        self.name = name
        self.port = free_port()
        self.peer_port = free_port()
        self.scheme = "http"
        self.folder = folder / name
        self.log_path = folder / f"{name}.log"
        self.flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://{HOST}:{self.port}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://{HOST}:{self.peer_port}"

    def start(self, cluster: str) -> None:
        assert self._process is None, "the member is running already"
        peer_url = f"http://{HOST}:{self.peer_port}"
        command = ["etcd", "--name", self.name, "--data-dir", str(self.folder)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
        command += ["--initial-cluster", cluster, "--unsafe-no-fsync", "--log-outputs", "stderr"]
        command += ["--logger", "zap", *self.flags]
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False

    def status(self) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/v3/maintenance/status", data=b"{}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def is_leader(self) -> bool:
        status = self.status()
        return bool(status["leader"] == status["header"]["member_id"])

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:] if self.log_path.exists() else ""


class EtcdCluster:
    """See the module's text."""

    def __init__(self, folder: Path, size: int = 1, flags: Sequence[str] = ()) -> None:
        self.members = [EtcdMember(folder, f"etcd-{n}", flags) for n in range(1, size + 1)]

    def __enter__(self) -> Self:
        for member in self.members:
            member.start(self._peers)
        try:
            self.wait_until_healthy()
        except BaseException as error:
            self.kill()
            error.add_note(self.members[0].log_tail())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def _peers(self) -> str:
        return ",".join(member.peer for member in self.members)

    def wait_until_healthy(self) -> None:
        for member in self.members:
            wait_until(member.is_healthy, f"{member.name} to be healthy", _START_SECONDS_MAX)

    def address(self, prefix: str = "millstream") -> str:
        """As `--metadata` takes it."""
        scheme = "etcds" if self.members[0].scheme == "https" else "etcd"
        endpoints = ",".join(f"{HOST}:{member.port}" for member in self.members)
        return f"{scheme}://{endpoints}/{prefix}"

    def start(self, member: EtcdMember) -> None:
        """Start a member again that was killed; its data is as it left it."""
        member.start(self._peers)

    def leader(self) -> EtcdMember:
        return next(member for member in self.members if member.is_leader())

    def compact(self) -> None:
        """Forget all changes before the present revision."""
        revision = self.members[0].status()["header"]["revision"]
        body = json.dumps({"revision": revision}).encode()
        request = urllib.request.Request(f"{self.members[0].url}/v3/kv/compaction", data=body)
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def kill(self) -> None:
        for member in self.members:
            member.kill()
