"""Whether a broker may be relied on: registered as it was, and not about to stop. Pure."""

from __future__ import annotations

from millstream.metadata.cluster_record import broker_key, leaving_key
from millstream.metadata.store.port import Compare


def still_there(node_id: int, epoch: int) -> list[Compare]:
    """Hold while the broker is registered under this epoch and has not begun to leave."""
    return [Compare(broker_key(node_id), epoch), Compare(leaving_key(node_id), 0)]
