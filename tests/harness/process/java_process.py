"""A Java program that runs until it is stopped or killed, such as a Kafka Connect worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from harness.tool.java import JVM, class_path, log_to_file
from millstream.process.server_process import ServerProcess

#: The sets of jars that such programs need.
JARS: Final = ("jars", "kafka-applications")
_NOTE_CHARACTERS: Final = 6000


class JavaProcess(ServerProcess):
    """A Java program whose output and log are in `folder`.

    A failure inside its `with` block shows both.
    """

    def __init__(self, folder: Path, *program: str, classes: Path | None = None) -> None:
        folder.mkdir()
        super().__init__(folder.name, folder / "output")
        self.folder = folder
        path = class_path(*JARS, classes=classes)
        self._command = [*JVM, log_to_file(folder), "-cp", path, *program]

    def command(self) -> Sequence[str]:
        return self._command

    def is_ready(self) -> bool:
        """Callers read the output to learn whether the program is ready."""
        return True

    def start(self, *, wait: bool = True) -> None:
        """Start the program with an empty output file."""
        self.log_path.unlink(missing_ok=True)
        super().start(wait=wait)

    def output(self) -> str:
        """Return what the program has printed since its start."""
        return self.log_text()

    def check_running(self) -> None:
        assert self.is_alive(), f"{self.name} is not running:\n{self.output()}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        warnings = self.folder / "kafka-warn.log"
        if error is not None and warnings.exists():
            text = warnings.read_text(errors="replace")
            error.add_note(f"{self.name} warns:\n{text[-_NOTE_CHARACTERS:]}")
