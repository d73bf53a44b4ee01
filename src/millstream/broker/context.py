"""What a handler gets besides its request: the parts of the broker, and the client."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
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
from millstream.model.principal import ANONYMOUS, Principal
from millstream.model.reply import Receiver
from millstream.replication.replicas import Replicas
from millstream.replication.replicator import Replicator
from millstream.security.audit_event import AuditTrail, NoAuditTrail
from millstream.transactions.transaction_coordinator import (
    TransactionCoordinator,
)

if TYPE_CHECKING:
    from millstream.broker.dispatch import ApiTable
    from millstream.broker.fetch_session import FetchSessions
    from millstream.broker.lag.partition_backlog import PartitionBacklogs
    from millstream.broker.login.authentication import Authentication
    from millstream.broker.login.client_login import ClientLogin
    from millstream.broker.quota.client_throttle import ClientThrottle
    from millstream.broker.telemetry.telemetry import Telemetry
    from millstream.broker.topic import TopicAdmin
    from millstream.broker.transaction.local_marker import LocalMarkers
    from millstream.broker.transaction.producer_id import ProducerIds
    from millstream.broker.transaction.remote_admission import TransactionCoordinators
    from millstream.broker.transaction.transaction_queue import TransactionQueues

#: Maximum number of bad records in one response, over all partitions.
RECORD_ERRORS_MAX: Final = 10_000


@dataclass(slots=True)
class Services:
    """The parts of a running broker that handlers use. The server builds and connects them."""

    #: Replaced when settings change at run time: read it for each request.
    config: BrokerConfig
    clock: Clock
    #: Connects to other brokers.
    peer_network: Network
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
    #: Finds the coordinator of a transactional id, on any broker.
    transaction_coordinators: TransactionCoordinators
    #: Produce requests that wait for a transaction's coordinator.
    transaction_queues: TransactionQueues
    #: Appends transaction markers to the partitions that this broker leads.
    markers: LocalMarkers
    #: The backlogs of the partitions that this broker leads.
    backlogs: PartitionBacklogs
    #: Logs and counts failures of callbacks.
    failures: CallbackFailures
    #: Makes log start offsets durable.
    checkpoint: Callable[[], Awaitable[None]]
    #: Metrics that clients push; None if this broker exports no metrics.
    telemetry: Telemetry | None = None
    #: Stops leading all partitions if the lease of the registration may have expired; cheap.
    check_lease: Callable[[], None] = lambda: None
    #: Enforces the quotas of clients; None while no client has a quota.
    quotas: ClientThrottle | None = None
    #: Logins of clients; None if no listener has SASL.
    authentication: Authentication | None = None
    #: Records authentications, denials and changes.
    audit: AuditTrail = field(default_factory=NoAuditTrail)
    #: The registration of this broker; set once its ports are bound.
    record: BrokerRecord | None = None

    @property
    def brokers(self) -> list[BrokerRecord]:
        """The live brokers; this broker while none is registered, as after an outage of the store.

        A client that receives an empty list forgets all brokers: librdkafka 2.16 may then never
        send a request again."""
        alive = list(self.catalog.image.brokers.values())
        return alive or ([] if self.record is None else [self.record])

    @property
    def controller_id(self) -> int:
        """The controller in responses to clients; this broker while there is none, because every
        broker executes the requests that clients send to a controller."""
        image = self.catalog.image
        return image.controller if image.controller in image.brokers else self.config.node_id


class CloseConnectionError(Exception):
    """Raised by a handler to close the connection, where the protocol has no error response."""


class ConnectedClient:
    """The client of one connection, for the lifetime of the connection."""

    __slots__ = (
        "address",
        "apis",
        "client_instance_id",
        "expires_at",
        "login",
        "port",
        "principal",
        "software_name",
        "software_version",
    )

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.port = port
        #: The client's identity; ANONYMOUS until it is authenticated, or without authentication.
        self.principal: Principal = ANONYMOUS
        #: The APIs that the client may call now: before it is authenticated, only those of the
        #: login. The session sets it before the first request.
        self.apis: ApiTable
        #: Monotonic time at which the authentication expires.
        self.expires_at = math.inf
        #: The login of the connection; None on a listener without SASL.
        self.login: ClientLogin | None = None
        #: From its ApiVersions request; None if unknown.
        self.software_name: str | None = None
        self.software_version: str | None = None
        #: The last client instance id in a telemetry request of the client.
        self.client_instance_id: bytes | None = None


class Context:
    """The context of one request: its client, version and receiver, and the broker's services."""

    __slots__ = (
        "client",
        "client_id",
        "listener",
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
        client: ConnectedClient,
        received_at: float,
        receiver: Receiver,
    ) -> None:
        self.services = services
        #: Name of the listener of the connection: responses have addresses of this listener.
        self.listener = listener
        self.version = version
        self.client_id = client_id
        self.client = client
        #: Monotonic time at which the request's last byte was read.
        self.received_at = received_at
        #: Receives the response of a handler that returns a `Reply`.
        self.receiver = receiver
        #: How many more bad records the response may list.
        self.record_errors_left = RECORD_ERRORS_MAX

    @property
    def client_address(self) -> str:
        return self.client.address
