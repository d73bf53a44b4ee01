"""An etcd of one or more members as child processes, which tests kill, pause and start again.

    with EtcdCluster(tmp_path, size=3) as etcd:
        etcd.members[0].kill()
        ...EtcdStore at etcd.address("some-prefix")...

Members do not sync data to disk: tests kill processes but do not cut the power.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from harness.tool.system_package import install_or_skip
from millstream.process.etcd_server import (
    NO_FSYNC,
    EtcdEndpoints,
    EtcdMember,
    is_etcd_installed,
    join_members,
    store_address,
)
from millstream.process.server_process import start_all

__all__ = ["EtcdCluster", "EtcdMember", "require_etcd"]


def require_etcd() -> None:
    """Skip the calling test, with the reason, where etcd cannot be installed."""
    install_or_skip("etcd-server", is_etcd_installed)


class EtcdCluster:
    """Members `etcd-1` to `etcd-N` on free ports, which run inside a `with` block."""

    def __init__(self, folder: Path, size: int = 1, flags: Sequence[str] = ()) -> None:
        self.members = [
            EtcdMember(f"etcd-{number}", folder, EtcdEndpoints.free(), [*NO_FSYNC, *flags])
            for number in range(1, size + 1)
        ]
        join_members(self.members)

    def __enter__(self) -> Self:
        try:
            start_all(self.members)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, member: EtcdMember) -> None:
        """Start a member that was killed, on the data it left, without waiting for it."""
        member.start(wait=False)

    def wait_until_healthy(self) -> None:
        for member in self.members:
            member.wait_until_ready()

    def address(self, prefix: str = "millstream") -> str:
        """Return the metadata store's address as `--metadata` takes it."""
        return store_address(self.members, prefix)

    def leader(self) -> EtcdMember:
        return next(member for member in self.members if member.is_leader())

    def compact(self) -> None:
        """Discard all changes before the current revision."""
        self.members[0].compact(self.members[0].status()["header"]["revision"])

    def kill(self) -> None:
        for member in self.members:
            member.kill()
