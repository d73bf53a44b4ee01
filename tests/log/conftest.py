"""Data directories for tests of the log layer (see `harness.in_process.log_home`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.in_process.log_home import SMALL, LogHome
from millstream.env.disk import Disk
from millstream.model.config import TopicConfig


@pytest.fixture
def new_home(tmp_path: Path) -> Iterator[Callable[..., LogHome]]:
    """Return a function that makes data directories. Open ones are closed after the test."""
    numbers = itertools.count()
    homes: list[LogHome] = []

    def make(config: TopicConfig = SMALL, disk: Disk | None = None) -> LogHome:
        homes.append(LogHome(tmp_path / str(next(numbers)), config, disk))
        return homes[-1]

    yield make
    for home in homes:
        if home.directory is not None:
            home.stop(clean=False)


@pytest.fixture
def home(new_home: Callable[..., LogHome]) -> LogHome:
    return new_home()
