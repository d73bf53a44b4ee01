"""A broker process with a full disk: it reports that, and continues once there is room again."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess, ServerFailed, wait_until
from harness.raw.raw_client import RawClient, values_batch
from millstream.model.error import ErrorCode

DISK_BYTES = 4 * 1024 * 1024


def _own_disk(path: Path, then: str) -> list[str]:
    """Return a command prefix that mounts a small disk at `path` for the broker alone."""
    flags = [] if os.getuid() == 0 else ["--map-root-user"]
    script = f"mount -t tmpfs -o size={DISK_BYTES} none {path} && {then}"
    return ["unshare", *flags, "--mount", "sh", "-c", script, "broker"]


@functools.cache
def _obstacle() -> str:
    if shutil.which("unshare") is None:
        return "no unshare here"
    trial = subprocess.run(
        _own_disk(Path("/run"), "true"), capture_output=True, text=True, check=False
    )
    return f"no disk of its own for a broker: {trial.stderr}" if trial.returncode else ""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], BrokerProcess]:
    """Start a broker on a small disk, after a shell has run `then` there."""
    if reason := _obstacle():
        pytest.skip(reason)
    disk = tmp_path / "disk"
    disk.mkdir()

    def make(then: str = "true") -> BrokerProcess:
        script = f'{{ {then}; }} && exec "$@"'
        return BrokerProcess(tmp_path, data=disk / "data", prefix=_own_disk(disk, script))

    return make


def fill(broker: BrokerProcess) -> Path:
    """Fill the disk of a running broker; return the file that fills it."""
    # The disk is mounted for the broker alone.
    filler = Path(f"/proc/{broker.pid}/root{broker.data.parent}/filler")
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) > 0:
                pass
        except OSError:
            return filler


def test_a_full_disk_stops_the_start_with_a_sentence(
    start: Callable[[str], BrokerProcess], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    broker = start(f"! cat /dev/zero > {disk}/filler")
    with pytest.raises(ServerFailed, match="ended"):
        broker.start()
    assert broker.exit_code == 1
    last = broker.log_text().splitlines()[-1]
    assert last.startswith("error: cannot start: ")
    assert "No space left" in last or "disk is full" in last
    assert "Traceback" not in broker.log_text()


def test_a_full_disk_rejects_only_appends(
    start: Callable[..., BrokerProcess],
) -> None:
    large = values_batch(b"x" * 100_000)
    with start() as broker, RawClient(broker.host, broker.port) as raw:
        raw.create_topic("t")
        assert raw.produce("t", values_batch(b"kept")).error_code == ErrorCode.NONE
        filler = fill(broker)
        assert raw.produce("t", large).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert [record.value for record in raw.read_all("t")] == [b"kept"]
        assert broker.is_ready()
        filler.unlink()
        wait_until(lambda: raw.produce("t", large).error_code == ErrorCode.NONE, "an append", 60)
        assert [len(record.value or b"") for record in raw.read_all("t")] == [4, 100_000]
        broker.stop()
        assert "Traceback" not in broker.log_text()
