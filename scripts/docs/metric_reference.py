"""The reference page of metrics: the families of a broker that was started to describe them."""

from __future__ import annotations

import logging

from scripts.docs.markdown import code, table

from millstream.broker.metrics.exposition import Family
from millstream.testing.broker import LocalBroker


def page() -> str:
    """Return a table of the metrics of a broker, in the order of `/metrics`."""
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (code(each.name), each.kind, ", ".join(map(code, each.label_names)), each.help)
            for each in families()
        ),
    )


def families() -> list[Family]:
    """Return the families of metrics of a broker, the process's own left out."""
    logging.getLogger("millstream").setLevel(logging.WARNING)
    # Metrics of clients are shown only by a broker that serves metrics.
    with LocalBroker(settings={"http.listen": "127.0.0.1:0"}) as broker:
        return broker._call(lambda running: list(running.server._metrics.families()))
