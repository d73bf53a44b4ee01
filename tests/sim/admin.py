"""A simulated operator: creates topics, moves replicas, requests elections."""

from __future__ import annotations

from millstream.model.error import ErrorCode
from millstream.replication.peer import PeerError
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from sim.client import TOPIC, Client


class Admin(Client):
    """Sends admin requests. A request that fails during a fault is noted, not retried."""

    async def create_topic(self, assignments: list[list[int]], configs: dict[str, str]) -> None:
        rows = CreateTopicsRequest.Topic
        topic = rows(
            name=TOPIC,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                rows.Assignment(partition_index=number, broker_ids=replicas)
                for number, replicas in enumerate(assignments)
            ],
            configs=[rows.Config(name=name, value=value) for name, value in configs.items()],
        )
        response = await self.call_any(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        row = response.topics[0]
        assert row.error_code == 0, (row.error_code, row.error_message)

    async def reassign(self, topic: str, partition: int, replicas: list[int] | None) -> None:
        """Start a reassignment; None cancels the one in progress."""
        rows = AlterPartitionReassignmentsRequest.Topic
        where = rows.Partition(partition_index=partition, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(topics=[rows(name=topic, partitions=[where])])
        try:
            address = self.random.choice(self._cluster.addresses)
            response = await self.call(address, request, 1, AlterPartitionReassignmentsResponse)
        except PeerError as error:
            self.note(f"the move was lost: {error}")
        else:
            rows_told = response.responses[0].partitions if response.responses else []
            codes = [response.error_code, *(row.error_code for row in rows_told)]
            self.note(f"moving {topic} {partition}: {[ErrorCode(code).name for code in codes]}")

    async def elect(self, topic: str, partition: int) -> None:
        """Elect the preferred replica."""
        request = ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequest.Topic(topic=topic, partitions=[partition])],
            timeout_ms=400,
        )
        try:
            address = self.random.choice(self._cluster.addresses)
            response = await self.call(address, request, 2, ElectLeadersResponse)
        except PeerError as error:
            self.note(f"the election was lost: {error}")
        else:
            self.note(f"electing for {topic} {partition}: {ErrorCode(response.error_code).name}")
