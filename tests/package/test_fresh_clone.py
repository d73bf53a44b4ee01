"""`make run` in a fresh clone on a machine without a C compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from harness.process.broker_process import HOST, free_port
from harness.tool.deploy_tool import REPOSITORY
from millstream.process.readiness import responds
from millstream.process.server_process import ServerProcess

#: The virtual environment is made, and the requirements are fetched from PyPI.
START_SECONDS_MAX = 900.0
COMPILERS = ("cc", "gcc", "c99", "c++", "g++", "clang")


class MadeBroker(ServerProcess):
    """`make run` in a clone, with a path that has no compiler."""

    def __init__(self, folder: Path, clone: Path) -> None:
        super().__init__("make", folder / "make.log", START_SECONDS_MAX)
        self._folder, self._clone = folder, clone
        self._port, self._http_port = free_port(), free_port()

    def command(self) -> Sequence[str]:
        arguments = f"--data {self._folder / 'data'} --listen {HOST}:{self._port}"
        return ["make", "run", f"ARGS={arguments} --http {HOST}:{self._http_port}"]

    def environment(self) -> Mapping[str, str]:
        tools = self._folder / "bin"
        if not tools.exists():
            tools.mkdir()
            _link_commands(tools)
        python = os.path.realpath(sys.executable)
        own = {"HOME": str(self._folder), "PYTHON": python}
        return {**own, "PATH": str(tools), "CC": "/bin/false"}

    def working_folder(self) -> Path:
        return self._clone

    def is_ready(self) -> bool:
        return responds(f"http://{HOST}:{self._http_port}/readyz")


def _link_commands(tools: Path) -> None:
    """Link every command of the path that is no compiler; the first one of a name counts."""
    for folder in os.environ["PATH"].split(os.pathsep):
        for file in Path(folder).iterdir() if Path(folder).is_dir() else ():
            is_compiler = any(part in COMPILERS for part in file.name.split("-"))
            if not is_compiler and not (tools / file.name).exists():
                (tools / file.name).symlink_to(file)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="this is no clone")
def test_make_run_works_without_a_compiler_and_says_so(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
    with MadeBroker(tmp_path, clone) as broker:
        log = broker.log_path.read_text()
        assert broker.stop() is not None
    assert "the kernels run uncompiled" in log
    assert not list((clone / "src").rglob("*.so"))
