"""The options of the load programs that say how to connect."""

from __future__ import annotations

import argparse
from typing import Any


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add `--bootstrap` and `--property KEY=VALUE`, which may be repeated."""
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")


def connection(options: argparse.Namespace) -> dict[str, Any]:
    """Return librdkafka's properties of the connection."""
    found = {"bootstrap.servers": options.bootstrap}
    for text in options.property:
        name, _, value = text.partition("=")
        found[name] = value
    return found
