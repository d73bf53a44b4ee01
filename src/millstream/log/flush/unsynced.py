"""The changes of a log that are in the page cache and not yet on stable storage."""

from __future__ import annotations

from pathlib import Path


class UnsyncedChanges:
    """What the next flush of one log must sync. Every part of the log that writes marks it here."""

    __slots__ = ("has_data", "has_names", "paths")

    def __init__(self) -> None:
        #: Whether batches were appended or truncated since the last flush began.
        self.has_data = False
        #: Whether files were created, renamed or removed since the last flush began.
        self.has_names = False
        #: Small files that were written since the last flush began.
        self.paths: list[Path] = []

    def add_file(self, path: Path) -> None:
        """Mark a small file that was just created or rewritten."""
        self.paths.append(path)
        self.has_names = True

    def clear(self) -> None:
        """Forget all changes: a flush has begun that covers them."""
        self.has_data = self.has_names = False
        self.paths = []

    def restore(self, paths: list[Path], *, has_names: bool) -> None:
        """Mark the changes of a flush that did not complete, for the next flush."""
        self.has_data = True
        self.has_names |= has_names
        self.paths = paths + self.paths
