"""Paths that the conformance tests use."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent
CACHE = REPOSITORY / ".cache"
JARS = CACHE / "jars"
