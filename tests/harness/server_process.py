"""What private servers of other makes have in common: installed, started in a folder, ended.

Subclasses say which program it is and how to ask whether it answers. All that the process says goes
to `<name>.log` in the folder.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from harness.broker_process import free_port, wait_until

_INSTALL = Path(__file__).resolve().parents[2] / "scripts" / "install-system-packages"
_START_SECONDS_MAX = 90.0


def install_or_skip(package: str, program: Path | None) -> None:
    """Skip the calling test, with the reason, where a Debian package could not be installed."""
    if program is None:
        result = subprocess.run([str(_INSTALL), package], capture_output=True, text=True)
        if result.returncode:
            pytest.skip(f"{package} is not available: {' '.join(result.stderr.split())}")


class ServerProcess:
    """See the module's text."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log_path = folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            wait_until(self._is_ready, f"{self.name} to answer", _START_SECONDS_MAX)
        except BaseException as error:
            self.stop()
            error.add_note(self.log_path.read_text(errors="replace")[-4000:])
            raise

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended"
        return self.answers()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(_START_SECONDS_MAX)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
