"""What a handler is given besides its request: the broker's parts, and who is asking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.env.clock import Clock
from millstream.env.network import Network
from millstream.env.random import Random
from millstream.groups.group_coordinator import GroupCoordinator
from millstream.log.directory.data_directory import LogDirectory
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Receiver
from millstream.replication.replicas import Replicas
from millstream.replication.replicator import Replicator
from millstream.transactions.transaction_coordinator import (
    TransactionCoordinator,
)

if TYPE_CHECKING:
    from millstream.broker.dispatch import ApiTable
    from millstream.broker.fetch_session import FetchSessions
    from millstream.broker.lag.partition_backlog import PartitionBacklogs
    from millstream.broker.telemetry.telemetry import Telemetry
    from millstream.broker.topic import TopicAdmin
    from millstream.broker.transaction.local_marker import LocalMarkers
    from millstream.broker.transaction.producer_id import ProducerIds
    from millstream.broker.transaction.remote_admission import TransactionCoordinators
    from millstream.broker.transaction.transaction_queue import TransactionQueues

#: Bad records that one response names, of all partitions together.
RECORD_ERRORS_MAX: Final = 10_000


@dataclass(slots=True)
class Services:
    """The parts of a running broker that handlers use. Built and connected by the server."""

    #: Replaced when settings are changed at run time; read it anew for each request.
    config: BrokerConfig
    clock: Clock
    network: Network
    random: Random
    metrics: Metrics
    catalog: Catalog
    directory: LogDirectory
    replicas: Replicas
    replicator: Replicator
    apis: ApiTable
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    topics: TopicAdmin
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    #: Finds the coordinator of a transactional id, on whichever broker.
    transaction_coordinators: TransactionCoordinators
    #: Produce requests that wait for a transaction's coordinator.
    transaction_queues: TransactionQueues
    #: Ends transactions in the partitions that this broker leads.
    markers: LocalMarkers
    #: What the partitions led here hold for readers.
    backlogs: PartitionBacklogs
    #: Failures of callbacks.
    failures: CallbackFailures
    #: Makes log start offsets durable.
    checkpoint: Callable[[], Awaitable[None]]
    #: Metrics of clients; None where this broker serves no metrics.
    telemetry: Telemetry | None = None
    #: Stops this broker from leading anything if others may have replaced it; cheap.
    check_lease: Callable[[], None] = lambda: None
    #: As this broker registers, from when its ports are known.
    record: BrokerRecord | None = None

    @property
    def brokers(self) -> list[BrokerRecord]:
        """Those that are alive, for clients; this one while nobody is registered, as after an
        outage of the store. Clients that are told of no broker at all forget those they knew:
        librdkafka 2.16 may then never ask anybody again."""
        alive = list(self.catalog.image.brokers.values())
        return alive or ([] if self.record is None else [self.record])

    @property
    def controller_id(self) -> int:
        """The controller, for clients; this broker while there is none, as it can do all that they
        would ask of one."""
        image = self.catalog.image
        return image.controller if image.controller in image.brokers else self.config.node_id


class CloseConnectionError(Exception):
    """Raised by a handler where the protocol's only answer is to hang up; the text says why."""


class Peer:
    """The client at the other end of one connection, for as long as the connection lives."""

    __slots__ = ("address", "client_instance_id", "port", "software_name", "software_version")

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.port = port
        #: From its ApiVersions request; None if it sent none, or none that says so.
        self.software_name: str | None = None
        self.software_version: str | None = None
        #: The last id under which it asked for subscriptions to its metrics, or pushed them.
        self.client_instance_id: bytes | None = None


class Context:
    """One request's circumstances. Valid for as long as its handler needs it."""

    __slots__ = (
        "client_id",
        "listener",
        "peer",
        "received_at",
        "receiver",
        "record_errors_left",
        "services",
        "version",
    )

    def __init__(
        self,
        services: Services,
        listener: str,
        version: int,
        client_id: str | None,
        peer: Peer,
        received_at: float,
        receiver: Receiver,
    ) -> None:
        self.services = services
        #: Name of the listener the client came in through: it decides which addresses it is told.
        self.listener = listener
        self.version = version
        self.client_id = client_id
        self.peer = peer
        #: Monotonic time at which the request's last byte was read.
        self.received_at = received_at
        #: Takes the response of a handler that returns a `Reply`.
        self.receiver = receiver
        #: How many more bad records the response may name.
        self.record_errors_left = RECORD_ERRORS_MAX

    @property
    def client_address(self) -> str:
        return self.peer.address
