"""A client of a whole cluster: metadata, leaders, coordinators, offsets and retries.

It opens one connection per broker on first use and keeps it. It retries errors that may pass (a
broker that is down, a leader that moved) until the settings' deadline, and then raises Unavailable
with the last error. A client belongs to one thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeVar

from millstream.model.acl import Operation
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.protocol.broker_connection import BrokerConnection
from millstream.protocol.connection_setting import Address, ConnectionSettings
from millstream.protocol.error import ConnectionLost, Unavailable
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from millstream.wire.messages.metadata import (
    OPERATIONS_OMITTED,
    MetadataRequest,
    MetadataResponse,
)

T = TypeVar("T")

GROUP: Final = 0
TRANSACTION: Final = 1
#: The last version whose request names a single coordinator.
_FIND_ONE_VERSION: Final = 3

#: The first version of Metadata that can tell what the user may do to a topic.
_OPERATIONS_VERSION: Final = 8

#: Errors that pass once the client has fresh metadata or a broker has caught up.
RETRIABLE: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """The metadata of a topic. Leaders are node ids by partition; -1 means no leader."""

    name: str
    topic_id: bytes
    is_internal: bool
    leaders: Mapping[int, int]
    #: What the user may do, as a bit field of `model.acl.Operation`. None if the broker is too old.
    operations: int | None = None

    def allows(self, operation: Operation) -> bool:
        """Return whether the user may do this to the topic, as far as the broker told."""
        return self.operations is None or bool(self.operations >> operation & 1)


class Coordinator(NamedTuple):
    """The broker that coordinates a group or a transactional id."""

    node_id: int
    address: Address


class RetryBackoff:
    """The growing pauses between the attempts at one operation, up to a deadline."""

    def __init__(self, settings: ConnectionSettings, what: str) -> None:
        self._settings = settings
        self._what = what
        self._started = time.monotonic()
        self._backoff_ms = float(settings.backoff_ms)

    def pause(self, problem: Exception) -> None:
        """Sleep until the next attempt, or raise Unavailable if the deadline comes first."""
        passed_ms = (time.monotonic() - self._started) * 1000
        if passed_ms + self._backoff_ms > self._settings.deadline_ms:
            raise Unavailable(
                f"could not {self._what} within {self._settings.deadline_ms} ms"
                f" (default.api.timeout.ms): {problem}"
            ) from problem
        time.sleep(self._backoff_ms / 1000 * random.uniform(0.8, 1.2))
        self._backoff_ms = min(self._backoff_ms * 2, self._settings.backoff_ms_max)


class ClusterClient:
    """Sends requests to the right broker of a cluster, and retries them."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._connections: dict[Address, BrokerConnection] = {}
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[tuple[int, str], Coordinator] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Retries

    def backoff(self, what: str) -> RetryBackoff:
        """Start a series of attempts; `what` follows "could not" in the error."""
        return RetryBackoff(self.settings, what)

    def attempt(self, what: str, action: Callable[[], T]) -> T:
        """Return the result of `action`, which is retried after retriable errors.

        `action` looks up its connection on each call, because the leader may have changed. Raises
        Unavailable, or BrokerError for an error that is not retriable."""
        backoff = self.backoff(what)
        while True:
            try:
                return action()
            except ConnectionLost as lost:
                self.forget_leaders()
                backoff.pause(lost)
            except BrokerError as error:
                if error.code not in RETRIABLE:
                    raise
                self.forget_leaders()
                backoff.pause(error)

    # Connections

    def connection(self, address: Address) -> BrokerConnection:
        """Return an idle connection to an address. Raises ConnectionLost."""
        found = self._connections.get(address)
        if found is None or found.is_closed or not found.is_idle:
            if found is not None:
                found.close()
            found = self._connections[address] = BrokerConnection(address, self.settings)
        return found

    def any_connection(self) -> BrokerConnection:
        """Return a connection to any broker. Raises ConnectionLost if none can be reached."""
        candidates = dict.fromkeys(
            [*self._connections, *self._brokers.values(), *self.settings.bootstrap]
        )
        problem: ConnectionLost | None = None
        for address in candidates:
            try:
                return self.connection(address)
            except ConnectionLost as lost:
                problem = problem or lost
        assert problem is not None
        raise problem

    def leader_connection(self, topic: str, partition: int) -> BrokerConnection:
        """Return the connection to a partition's leader.

        Raises ConnectionLost, or BrokerError LEADER_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION."""
        found = self._topics.get(topic)
        if found is None:
            (found,) = self._fetch_topics([topic])
        node_id = found.leaders.get(partition)
        if node_id is None:
            self._topics.pop(topic, None)
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic} has {len(found.leaders)} partitions, none of them {partition}",
            )
        if node_id not in self._brokers:
            self._topics.pop(topic, None)
            raise BrokerError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader now"
            )
        return self.broker_connection(node_id)

    def broker_connection(self, node_id: int) -> BrokerConnection:
        """Return the connection to a broker. Raises ConnectionLost or BROKER_NOT_AVAILABLE."""
        address = self._brokers.get(node_id)
        if address is None:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not alive")
        return self.connection(address)

    def coordinator_connection(self, key: str, kind: int) -> BrokerConnection:
        """Return the connection to the coordinator of a group (`GROUP`) or a transactional id
        (`TRANSACTION`). Raises ConnectionLost or BrokerError."""
        return self.connection(self.coordinator(key, kind).address)

    def coordinator(self, key: str, kind: int) -> Coordinator:
        """Return the cached coordinator of a key, or look it up. Raises what
        `coordinator_connection` raises."""
        found = self._coordinators.get((kind, key))
        if found is None:
            response = self.any_connection().call(
                FindCoordinatorRequest(key=key, key_type=kind),
                FindCoordinatorResponse,
                _FIND_ONE_VERSION,
            )
            _check(response.error_code, f"finding the coordinator of {key!r}")
            found = Coordinator(response.node_id, Address(response.host, response.port))
            self._coordinators[kind, key] = found
        return found

    def forget_leaders(self) -> None:
        """Drop the cached leaders and coordinators, so that the next request looks them up."""
        self._topics.clear()
        self._coordinators.clear()

    # Metadata

    def topic(self, name: str) -> TopicMetadata:
        """Return the cached metadata of a topic, or fetch them. Raises what `topics` raises."""
        return self._topics.get(name) or self.topics([name])[0]

    def topics(self, names: Iterable[str] | None = None) -> list[TopicMetadata]:
        """Fetch the metadata of the named topics, or of all topics.

        Raises BrokerError for a topic that does not exist, Unavailable if no broker responds."""
        wanted = None if names is None else list(names)
        return self.attempt("get metadata", lambda: self._fetch_topics(wanted))

    def existing_topics(self, names: Iterable[str]) -> list[TopicMetadata]:
        """Fetch the metadata of the named topics, without those that do not exist."""
        wanted = list(names)
        return self.attempt("get metadata", lambda: self._fetch_topics(wanted, is_lenient=True))

    @property
    def broker_ids(self) -> list[int]:
        """The brokers that the last metadata response named, in ascending order."""
        return sorted(self._brokers)

    def fetch_metadata(self, names: Iterable[str] | None = None) -> MetadataResponse:
        """Fetch the metadata of the named topics, or of all topics, without retries.

        The caller checks the errors of topics. Raises ConnectionLost."""
        asked = None if names is None else [MetadataRequest.Topic(name=name) for name in names]
        connection = self.any_connection()
        request = MetadataRequest(
            topics=asked,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=(
                connection.version(MetadataRequest) >= _OPERATIONS_VERSION
            ),
        )
        response = connection.call(request, MetadataResponse)
        self._brokers = {row.node_id: Address(row.host, row.port) for row in response.brokers}
        return response

    def _fetch_topics(
        self, names: list[str] | None, is_lenient: bool = False
    ) -> list[TopicMetadata]:
        found = []
        for row in self.fetch_metadata(names).topics:
            if is_lenient and row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            _check(row.error_code, f"asking for topic {row.name}")
            topic = _topic(row)
            self._topics[topic.name] = topic
            found.append(topic)
        return found

    # Offsets

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], is_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after each partition's timestamp, or -1.

        A timestamp may also be one of the negative constants of `wire.messages.list_offsets`. If
        `is_committed`, the latest offset is the last stable offset. Raises BrokerError for a
        partition that does not exist, or Unavailable."""
        found: dict[TopicPartition, int] = {}

        def attempt() -> None:
            left = {key: value for key, value in wanted.items() if key not in found}
            by_leader: dict[Address, dict[TopicPartition, int]] = {}
            for key, value in left.items():
                address = self.leader_connection(*key).address
                by_leader.setdefault(address, {})[key] = value
            for address, share in by_leader.items():
                found.update(self._list_offsets(self.connection(address), share, is_committed))

        self.attempt("list offsets", attempt)
        return found

    def _list_offsets(
        self, connection: BrokerConnection, wanted: Mapping[TopicPartition, int], is_committed: bool
    ) -> dict[TopicPartition, int]:
        shape = ListOffsetsRequest.Topic
        rows: dict[str, ListOffsetsRequest.Topic] = {}
        for (name, partition), timestamp in wanted.items():
            row = rows.setdefault(name, shape(name=name, partitions=[]))
            row.partitions.append(shape.Partition(partition_index=partition, timestamp=timestamp))
        request = ListOffsetsRequest(
            isolation_level=int(is_committed),
            topics=list(rows.values()),
            timeout_ms=self.settings.request_timeout_ms,
        )
        response = connection.call(request, ListOffsetsResponse)
        found = {}
        for topic in response.topics:
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                _check(part.error_code, f"listing offsets of {key}")
                found[key] = part.offset
        return found


def _topic(row: MetadataResponse.Topic) -> TopicMetadata:
    return TopicMetadata(
        name=row.name or "",
        topic_id=row.topic_id,
        is_internal=row.is_internal,
        leaders={part.partition_index: part.leader_id for part in row.partitions},
        operations=(
            None
            if row.topic_authorized_operations == OPERATIONS_OMITTED
            else row.topic_authorized_operations
        ),
    )


def _check(code: int, doing: str) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(code), f"the broker's response to {doing}")
