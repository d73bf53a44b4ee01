"""The names that can be imported from `millstream` and `millstream.spark`."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import millstream
import millstream.spark

MODULES = [millstream, millstream.spark]


def declared(module: ModuleType) -> dict[str, str]:
    """Return the names that type checkers see, with their modules."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    block = next(each for each in tree.body if isinstance(each, ast.If))
    return {
        alias.name: str(each.module).removeprefix(f"{module.__name__}.")
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_type_checkers_and_python_see_the_same_names(module: ModuleType) -> None:
    assert declared(module) == module._MODULES


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_name_can_be_imported_and_is_listed(module: ModuleType) -> None:
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Kafka'"):
        _ = module.Kafka


def test_names_of_the_client_are_public() -> None:
    for package in ("", ".dedup", ".outbox", ".worker"):
        client = importlib.import_module(f"millstream.client{package}")
        assert set(client.__all__) <= set(millstream.__all__)


def test_every_error_derives_from_millstream_error() -> None:
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            if isinstance(found, type) and issubclass(found, BaseException):
                assert issubclass(found, millstream.MillstreamError), name


def test_importing_millstream_imports_nothing_else() -> None:
    program = (
        "import sys, millstream\n"
        "print(sorted(each for each in sys.modules if each.startswith('millstream')))\n"
        "from millstream import MillstreamError\n"
        "print('confluent_kafka' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["['millstream']", "False"]


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert millstream.__version__ == version("millstream")
