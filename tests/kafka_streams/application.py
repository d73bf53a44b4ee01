"""Instances of the Streams application, each a process with its own state folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.java import JVM, class_path, log_to_file
from kafka_streams.feed import WINDOW_MS

JARS = ("jars", "kafka-applications")
_STOP_SECONDS_MAX = 60.0


class Instance:
    """`java/Orders.java`. A restarted instance finds the state that it left."""

    def __init__(self, name: str, folder: Path, classes: Path, bootstrap: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self._output = self.folder / "output"
        path = class_path(*JARS, classes=classes)
        program = ["Orders", bootstrap, str(self.folder / "state"), str(WINDOW_MS)]
        self._command = [*JVM, log_to_file(self.folder), "-cp", path, *program]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        if error is not None:
            logged = self.folder / "kafka-warn.log"
            text = logged.read_text(errors="replace")[-4000:] if logged.exists() else ""
            error.add_note(f"{self.folder.name} says:\n{self.output()}\n{text}")

    def start(self) -> None:
        assert self._process is None
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def tasks(self) -> int:
        """The tasks that it works on."""
        assert self._process is not None
        text = self.output()
        assert self._process.poll() is None, f"{self.folder.name} ended"
        assert "failed" not in text, text
        told = [line for line in text.splitlines() if line.startswith("tasks ")]
        return int(told[-1].split()[1]) if told else 0

    def kill(self) -> None:
        """`kill -9`; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        process.wait(_STOP_SECONDS_MAX)
        assert "failed" not in self.output(), self.output()
