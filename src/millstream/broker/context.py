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
from millstream.model.acl import CLUSTER_NAME, DENIAL_CODES, Operation, ResourceType, label
from millstream.model.error import BrokerError
from millstream.model.failure import CallbackFailures
from millstream.model.principal import ANONYMOUS, Principal
from millstream.model.reply import Receiver
from millstream.replication.replicas import Replicas
from millstream.replication.replicator import Replicator
from millstream.security.acl.authorizer import Authorizer, all_operations, resource_text
from millstream.security.audit_event import AuditEvent, AuditKind, AuditTrail, NoAuditTrail
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

    #: Replaced when settings change at run time, so handlers read it for each request.
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
    #: Logins of clients; None if no listener has SASL.
    authentication: Authentication | None = None
    #: Enforces the quotas of clients; None while no client has a quota.
    quotas: ClientThrottle | None = None
    #: Records authentications, denials and changes.
    audit: AuditTrail = field(default_factory=NoAuditTrail)
    #: Decides what clients may do; None if everything is allowed.
    authorizer: Authorizer | None = None
    #: The registration of this broker; set once its ports are bound.
    record: BrokerRecord | None = None

    @property
    def brokers(self) -> list[BrokerRecord]:
        """The live brokers. While none is registered, as after an outage of the store, this broker:
        a client that receives an empty list forgets all brokers, and librdkafka 2.16 may then never
        send a request again."""
        alive = list(self.catalog.image.brokers.values())
        return alive or ([] if self.record is None else [self.record])

    @property
    def controller_id(self) -> int:
        """The controller in responses to clients. While there is none, this broker: every broker
        executes the requests that clients send to a controller."""
        image = self.catalog.image
        return image.controller if image.controller in image.brokers else self.config.node_id


class CloseConnectionError(Exception):
    """Raised by a handler to close the connection, where the protocol has no error response."""


class AccessDeniedError(BrokerError):
    """The client may not do what it asks. The session sends the error code as the response."""


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
        "api_name",
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
        api_name: str = "",
    ) -> None:
        self.services = services
        self.api_name = api_name
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

    # Authorization

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the client may do this. A denial is recorded."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return True
        client = self.client
        key = (client.principal, client.address, operation, resource_type, name)
        allowed = authorizer.decisions.get(key)
        if allowed is None:
            allowed = authorizer.decide(key)
        if not allowed:
            self._record_denial(authorizer, operation, resource_type, name)
        return allowed

    def require(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raise AccessDeniedError with the error code of the resource type if the client may not
        do this."""
        if not self.allows(operation, resource_type, name):
            raise AccessDeniedError(
                DENIAL_CODES[resource_type],
                f"{self.client.principal} may not {label(operation)}"
                f" {resource_text(resource_type, name)}",
            )

    def require_cluster(self, operation: Operation) -> None:
        """Raise AccessDeniedError with CLUSTER_AUTHORIZATION_FAILED if the client may not do this
        to the cluster."""
        self.require(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def shows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether a list that the client asked for shows a resource. A resource that is
        left out is no denial."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return True
        client = self.client
        return authorizer.is_visible(
            client.principal, client.address, operation, resource_type, name
        )

    def holds_cluster(self, operation: Operation) -> bool:
        """Return whether the client has a right on the cluster that makes narrower rights
        unnecessary. Without it the caller checks those. Learning mode does not change it."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return True
        client = self.client
        if authorizer.is_learning:
            return authorizer.would_allow(
                str(client.principal),
                client.address,
                operation,
                ResourceType.CLUSTER,
                CLUSTER_NAME,
                client.principal.groups,
            )
        return self.shows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the client may do this to at least one resource of the type."""
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.allows_any(
            self.client.principal, self.client.address, operation, resource_type
        )

    def authorized_operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the operations that the client may do, as a bit field."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return all_operations(resource_type)
        client = self.client
        return authorizer.operations(client.principal, client.address, resource_type, name)

    def cluster_operations(self) -> int:
        """Return the operations on the cluster that the client may do; none if it may not
        describe the cluster."""
        if not self.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
            return 0
        return self.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)

    def _record_denial(
        self,
        authorizer: Authorizer,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        authorizer.denials[operation, resource_type] += 1
        self.services.audit.record(
            AuditEvent(
                AuditKind.DENIAL,
                self.api_name,
                str(self.client.principal),
                self.client.address,
                self.client_id or "",
                resource_text(resource_type, name),
                DENIAL_CODES[resource_type].name,
                label(operation),
            )
        )
