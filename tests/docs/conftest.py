"""The interpreter that runs the Python blocks of all pages, and the examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from docs.page_runner import Interpreter, page_environment


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    made = Interpreter(page_environment(tmp_path_factory.mktemp("interpreter")))
    yield made
    made.close()
