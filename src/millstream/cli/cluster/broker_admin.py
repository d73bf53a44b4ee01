"""The requests of the `broker` commands: list brokers, decommission one.

The cluster-wide setting `decommissioned.brokers` names the brokers that must hold no replicas. The
controller moves their replicas, so nothing depends on the command that changed the setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from millstream.cli.support.cluster_connection import rejection
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.model.error import ErrorCode
from millstream.protocol.cluster_client import ClusterClient
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

DECOMMISSIONED: Final = "decommissioned.brokers"
RATES: Final = ("leader.reassignment.throttled.rate", "follower.reassignment.throttled.rate")
_BROKER: Final = 4
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_ALL_BROKERS: Final = ""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker as the metadata describe it, or one that is down but has replicas."""

    broker: int
    #: None while the broker is down.
    address: str | None
    rack: str | None
    is_controller: bool
    is_decommissioned: bool
    leads: int
    replicas: int
    #: The number of replicas that are moving to another broker.
    moving: int
    out_of_sync: int

    @property
    def state(self) -> str:
        if self.is_decommissioned:
            return "decommissioning" if self.replicas else "decommissioned"
        return "down" if self.address is None else "alive"

    def as_dict(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "state": self.state,
            "address": self.address,
            "rack": self.rack,
            "controller": self.is_controller,
            "leads": self.leads,
            "replicas": self.replicas,
            "moving": self.moving,
            "out_of_sync": self.out_of_sync,
        }


class BrokerAdmin:
    """Sends requests to one broker of a cluster."""

    __slots__ = ("_broker", "_cluster")

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._broker = cluster.any_connection()

    def rows(self) -> list[BrokerRow]:
        metadata = self._cluster.fetch_metadata()
        alive = {broker.node_id: broker for broker in metadata.brokers}
        emptied = self.decommissioned()
        removing = self._removing()
        partitions = [
            (topic.name, partition) for topic in metadata.topics for partition in topic.partitions
        ]
        ids = {*alive, *emptied, *(each for _, row in partitions for each in row.replica_nodes)}
        rows = []
        for broker_id in sorted(ids):
            broker = alive.get(broker_id)
            own = [(name, row) for name, row in partitions if broker_id in row.replica_nodes]
            rows.append(
                BrokerRow(
                    broker_id,
                    None if broker is None else f"{broker.host}:{broker.port}",
                    None if broker is None else broker.rack,
                    broker_id == metadata.controller_id,
                    broker_id in emptied,
                    sum(row.leader_id == broker_id for _, row in own),
                    len(own),
                    sum(
                        broker_id in removing.get((name or "", row.partition_index), ())
                        for name, row in own
                    ),
                    sum(broker_id not in row.isr_nodes for _, row in own),
                )
            )
        return rows

    def row(self, broker_id: int) -> BrokerRow:
        for row in self.rows():
            if row.broker == broker_id:
                return row
        raise CommandError(
            ExitCode.NOT_FOUND,
            f"there is no broker {broker_id}: `millstream broker list` shows all brokers.",
        )

    def decommissioned(self) -> frozenset[int]:
        """Return the brokers that must hold no replicas."""
        text = self._setting(DECOMMISSIONED) or ""
        return frozenset(int(item) for item in text.split(",") if item.strip())

    def decommission(self, broker_id: int) -> None:
        self._alter([(DECOMMISSIONED, _APPEND, str(broker_id))], f"broker {broker_id}")

    def recommission(self, broker_id: int) -> None:
        """Let the broker hold replicas again."""
        self._alter([(DECOMMISSIONED, _SUBTRACT, str(broker_id))], f"broker {broker_id}")

    def set_throttle(self, bytes_per_second: int) -> None:
        self._alter([(name, _SET, str(bytes_per_second)) for name in RATES], "the throttle")

    def lift_throttle(self) -> None:
        self._alter([(name, _DELETE, None) for name in RATES], "the throttle")

    def cancel_moves(self, broker_id: int) -> int:
        """Cancel the reassignments that move replicas away from a broker. Return their number."""
        moves = [key for key, brokers in self._removing().items() if broker_id in brokers]
        if not moves:
            return 0
        request = AlterPartitionReassignmentsRequest()
        for name in dict.fromkeys(topic for topic, _ in moves):
            rows = [
                AlterPartitionReassignmentsRequest.Topic.Partition(
                    partition_index=partition, replicas=None
                )
                for topic, partition in moves
                if topic == name
            ]
            request.topics.append(
                AlterPartitionReassignmentsRequest.Topic(name=name, partitions=rows)
            )
        response = self._broker.call(request, AlterPartitionReassignmentsResponse)
        for topic in response.responses:
            for row in topic.partitions:
                if row.error_code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
                    what = f"cancelling the reassignment of {topic.name}-{row.partition_index}"
                    raise rejection(row.error_code, what)
        return len(moves)

    def _removing(self) -> dict[tuple[str, int], list[int]]:
        """Return the brokers that lose a replica by reassignment, by partition."""
        response = self._broker.call(
            ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse
        )
        if response.error_code:
            raise rejection(response.error_code, "listing reassignments")
        return {
            (topic.name, row.partition_index): row.removing_replicas
            for topic in response.topics
            for row in topic.partitions
        }

    def _setting(self, name: str) -> str | None:
        resource = DescribeConfigsRequest.Resource(
            resource_type=_BROKER, resource_name=_ALL_BROKERS, configuration_keys=[name]
        )
        response = self._broker.call(
            DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse
        )
        (result,) = response.results
        if result.error_code:
            raise rejection(result.error_code, f"reading {name}")
        return next((row.value for row in result.configs if row.name == name), None)

    def _alter(self, changes: list[tuple[str, int, str | None]], what: str) -> None:
        configs = [
            IncrementalAlterConfigsRequest.Resource.Config(
                name=name, config_operation=operation, value=value
            )
            for name, operation, value in changes
        ]
        resource = IncrementalAlterConfigsRequest.Resource(
            resource_type=_BROKER, resource_name=_ALL_BROKERS, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (row,) = self._broker.call(request, IncrementalAlterConfigsResponse).responses
        if row.error_code:
            reason = row.error_message or ErrorCode(row.error_code).name
            raise CommandError(ExitCode.FAILED, f"{what}: {reason}.")
