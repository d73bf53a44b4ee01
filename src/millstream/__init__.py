"""Millstream: a distributed message queue that speaks the Apache Kafka wire protocol.

The names of `millstream.client` can be had from here. They are imported when first asked for: a
broker needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.client import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        client = importlib.import_module("millstream.client")
        if name in client.__all__:
            return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
