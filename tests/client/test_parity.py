"""The asyncio classes have every method of the sync classes, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from millstream.client import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    AsyncTransaction,
    Consumer,
    Producer,
    Transaction,
)


def public(kind: type[Any]) -> dict[str, Any]:
    return {name: each for name, each in vars(kind).items() if not name.startswith("_")}


def arguments(method: Any) -> list[tuple[str, Any, Any, str]]:
    found = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default, each.annotation) for each in found]


@pytest.mark.parametrize(
    ("sync", "asynchronous"),
    [
        (Admin, AsyncAdmin),
        (Producer, AsyncProducer),
        (Consumer, AsyncConsumer),
        (Transaction, AsyncTransaction),
    ],
)
def test_both_have_the_same_methods_and_arguments(sync: type[Any], asynchronous: type[Any]) -> None:
    plain, awaited = public(sync), public(asynchronous)
    assert plain.keys() == awaited.keys()
    for name, method in awaited.items():
        if inspect.isfunction(method):
            assert arguments(method) == arguments(plain[name]), name
        else:
            assert type(method) is type(plain[name]), name
    if sync is not Transaction:
        assert arguments(sync.__init__) == arguments(asynchronous.__init__)
