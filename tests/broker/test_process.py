"""The broker as a process of its own: what it reports about its environment."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import millstream
from harness.process.broker_process import BrokerProcess

NOTICE = "the kernels run uncompiled"


class CopiedBroker(BrokerProcess):
    """A broker that runs another copy of the package."""

    sources: Path

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self.sources)}


def test_a_broker_says_that_its_kernels_run_uncompiled(tmp_path: Path) -> None:
    package = Path(millstream.__file__).parent
    copy = tmp_path / "src" / "millstream"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("*.so", "*.c"))
    broker = CopiedBroker(tmp_path)
    broker.sources = copy.parent
    with broker:
        log = broker.log_path.read_text()
    assert NOTICE in log
    assert "WARNING millstream.broker.process" in log


def test_a_broker_with_compiled_kernels_says_nothing(tmp_path: Path) -> None:
    package = Path(millstream.__file__).parent
    has_kernels = any((package / "records").glob("kernel.*.so"))
    with BrokerProcess(tmp_path) as broker:
        assert (NOTICE in broker.log_path.read_text()) == (not has_kernels)
