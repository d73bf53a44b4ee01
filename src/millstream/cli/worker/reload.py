"""Watches source files for --reload: a scan of modification times, several times a second.

A scan of a few thousand files takes some milliseconds. That is enough for development, works on
every file system, and needs no package.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SCAN_S: Final = 0.5
#: Folders that hold no source of the application.
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


class SourceWatch:
    """Tells whether a Python file below the folders was changed, added or removed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [str(folder) for folder in folders]
        self._times = self._scan()
        self._scanned_at = time.monotonic()

    def has_changed(self) -> bool:
        """Whether files differ from the last time that this returned True, or from the start."""
        now = time.monotonic()
        if now - self._scanned_at < _SCAN_S:
            return False
        self._scanned_at = now
        times = self._scan()
        if times == self._times:
            return False
        self._times = times
        return True

    def _scan(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for root in self._folders:
            for folder, names, files in os.walk(root):
                names[:] = [name for name in names if name[0] != "." and name not in _SKIPPED]
                for file in files:
                    if file.endswith(".py"):
                        path = os.path.join(folder, file)
                        try:
                            found[path] = os.stat(path).st_mtime_ns
                        except FileNotFoundError:
                            # Removed during the scan.
                            continue
        return found
