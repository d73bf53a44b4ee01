"""Brokers for transactions that end soon, and where their partitions are stable."""

from __future__ import annotations

from harness.raw_client import RawClient
from millstream.wire.messages.list_offsets import LATEST, ListOffsetsRequest

READ_COMMITTED = 1
SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


def stable_offset(client: RawClient, topic: str, partition: int = 0) -> int:
    """The last stable offset, as committed readers are told it."""
    wanted = ListOffsetsRequest.Topic.Partition(partition_index=partition, timestamp=LATEST)
    request = ListOffsetsRequest(
        isolation_level=READ_COMMITTED,
        topics=[ListOffsetsRequest.Topic(name=topic, partitions=[wanted])],
    )
    row = client.call(request).topics[0].partitions[0]
    assert row.error_code == 0, row
    return int(row.offset)
