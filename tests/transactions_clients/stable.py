"""Settings of brokers for transactions, and the last stable offsets of partitions."""

from __future__ import annotations

from harness.process.broker_process import wait_until
from harness.process.brokers import Brokers
from harness.raw.raw_client import RawClient
from millstream.wire.messages.list_offsets import LATEST, ListOffsetsRequest

READ_COMMITTED = 1
SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


def stable_offset(client: RawClient, topic: str, partition: int = 0) -> int:
    """Return the last stable offset that read_committed consumers see."""
    wanted = ListOffsetsRequest.Topic.Partition(partition_index=partition, timestamp=LATEST)
    request = ListOffsetsRequest(
        isolation_level=READ_COMMITTED,
        topics=[ListOffsetsRequest.Topic(name=topic, partitions=[wanted])],
    )
    row = client.call(request).topics[0].partitions[0]
    assert row.error_code == 0, row
    return int(row.offset)


def quiet_end(brokers: Brokers, topic: str, partition: int) -> int:
    """Wait until the partition has no open transaction; return its end offset."""
    found: list[int] = []

    def is_quiet() -> bool:
        with brokers.leader(topic, partition) as client:
            end = int(client.list_offset(topic, LATEST, partition).offset)
            if stable_offset(client, topic, partition) == end:
                found.append(end)
        return bool(found)

    wait_until(is_quiet, f"the end of every transaction in {topic}-{partition}", 90)
    return found[0]
