"""All message classes, and values for each class built from its schema.

A test with the arguments `shape` and `version` runs once for each version of each message,
including versioned data inside messages. A module with `IS_OF_KAFKA = True` tests Kafka's messages
only.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis.strategies import SearchStrategy

import millstream.wire.messages
from harness.schema_values import full_message_of, values_of
from millstream.wire.api import PRIVATE_FROM
from millstream.wire.schema import Message, Versioned


def _message_classes() -> Iterator[type[Versioned]]:
    for each in pkgutil.iter_modules(millstream.wire.messages.__path__):
        module = importlib.import_module(f"millstream.wire.messages.{each.name}")
        for value in vars(module).values():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and issubclass(value, Versioned):
                yield value


MESSAGES = sorted(_message_classes(), key=lambda shape: shape.__name__)


def _is_private(shape: type[Versioned]) -> bool:
    return issubclass(shape, Message) and shape.api_key >= PRIVATE_FROM


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_of_kafka = getattr(metafunc.module, "IS_OF_KAFKA", False)
    shapes = [shape for shape in MESSAGES if not (is_of_kafka and _is_private(shape))]
    if {"shape", "version"} <= set(metafunc.fixturenames):
        pairs = [
            pytest.param(shape, version, id=f"{shape.__name__}-v{version}")
            for shape in shapes
            for version in range(shape.versions[0], shape.versions[1] + 1)
        ]
        metafunc.parametrize(("shape", "version"), pairs)
    elif "shape" in metafunc.fixturenames:
        metafunc.parametrize("shape", shapes, ids=lambda shape: shape.__name__)


@pytest.fixture(scope="session")
def message_values() -> Callable[..., SearchStrategy[Any]]:
    """Return `message_values(shape, version)`, which returns the strategy for one message."""
    return values_of


@pytest.fixture(scope="session")
def full_message() -> Callable[[type, int], Any]:
    """Return `full_message(shape, version)` (see `full_message_of`)."""
    return full_message_of
