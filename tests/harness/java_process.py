"""A Java program that runs until it is stopped or killed: of Kafka Connect, of Kafka Streams."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from harness.java import JVM, class_path, log_to_file

#: The sets of jars that such programs need.
JARS: Final = ("jars", "kafka-applications")
_STOP_SECONDS_MAX: Final = 60.0
_NOTE_CHARACTERS: Final = 6000


class JavaProcess:
    """Its output and its log are in `folder`, and are shown where a test fails inside of `with`."""

    def __init__(self, folder: Path, *program: str, classes: Path | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        path = class_path(*JARS, classes=classes)
        self._command = [*JVM, log_to_file(folder), "-cp", path, *program]
        self._output = folder / "output"
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
            text = logged.read_text(errors="replace") if logged.exists() else ""
            error.add_note(f"{self.folder.name} says:\n{self.output()}\n{text[-_NOTE_CHARACTERS:]}")

    def start(self) -> None:
        """Start it, or start it again. Its output begins anew."""
        assert self._process is None
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def output(self) -> str:
        """What it has printed since its start."""
        return self._output.read_text(errors="replace")

    def check_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.folder.name} ended:\n{self.output()}"

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
