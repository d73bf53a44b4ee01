"""The examples in the docstrings run as they are, against the session's broker."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import pkgutil

import pytest

import millstream.client
from millstream.model.bootstrap import SERVERS_VARIABLE

#: Without the worker, whose example needs its topics: `worker/test_worker.py` runs it.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(millstream.client.__path__, "millstream.client.")
    if not module.ispkg and not module.name.startswith("millstream.client.worker.")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVERS_VARIABLE, bootstrap)
    imported = importlib.import_module(module)
    names = {name: getattr(millstream.client, name) for name in millstream.client.__all__}
    found = doctest.testmod(imported, extraglobs={**names, "asyncio": asyncio}, report=True)
    assert found.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    owners = {
        test.name.rpartition(".")[2]
        for module in MODULES
        for test in finder.find(importlib.import_module(module))
        if test.examples
    }
    assert {"Producer", "Consumer", "Admin", "AsyncProducer", "AsyncConsumer"} <= owners
    assert {"transaction", "AvroSerializer", "ProtobufSerializer"} <= owners
