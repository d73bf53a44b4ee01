"""The public names of `millstream.spark` are functions and classes, even after repeated imports."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "millstream.spark": ("read_snapshot", "read_topic_history"),
    "millstream.spark.decode": ("decoded", "split"),
    "millstream.spark.job": (
        *("ArchiveOptions", "Failure", "JobError", "Progress", "Question", "ReplayOptions"),
        *("Report", "Run", "RunOptions", "Step", "Table", "archive", "audit", "deadletters"),
        *("profile", "read_snapshot", "replay", "snapshot"),
    ),
    "millstream.spark.progress": ("commit_progress",),
    "millstream.spark.session": ("spark_session",),
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_name_is_never_a_module(module: str) -> None:
    found = importlib.import_module(module)
    for _ in range(2):
        for name in PUBLIC[module]:
            assert type(getattr(found, name)).__name__ != "module", name
