"""Instances of the Streams application, each a process with its own state directory."""

from __future__ import annotations

from pathlib import Path

from harness.process.java_process import JavaProcess
from kafka_streams.feed import WINDOW_MS


class Instance(JavaProcess):
    """One process of `java/Orders.java`. A restarted instance finds its earlier state."""

    def __init__(self, name: str, folder: Path, classes: Path, bootstrap: str) -> None:
        own = folder / name
        program = ("Orders", bootstrap, str(own / "state"), str(WINDOW_MS))
        super().__init__(own, *program, classes=classes)

    def tasks(self) -> int:
        """Return the tasks that the instance runs."""
        self.check_running()
        text = self.output()
        assert "failed" not in text, text
        reports = [line for line in text.splitlines() if line.startswith("tasks ")]
        return int(reports[-1].split()[1]) if reports else 0

    def stop(self) -> None:
        super().stop()
        assert "failed" not in self.output(), self.output()
