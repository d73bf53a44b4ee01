"""All brokers of a cluster: metadata, leaders, coordinators, offsets, and trying again.

Connections are made when they are first needed and kept, one a broker. Whatever may pass (a broker
that is down, a leader that moved) is tried again until the settings' deadline, and then raised as
Unavailable with the last thing that went wrong. Not for several threads.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeVar

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.broker_connection import Link
from millstream.protocol.connection_setting import Address, ConnectionSettings
from millstream.protocol.error import ConnectionLost, Unavailable
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

T = TypeVar("T")

GROUP: Final = 0
TRANSACTION: Final = 1
#: The last version that asks for one coordinator.
_FIND_ONE_VERSION: Final = 3

#: What passes once metadata are fresh or a broker has caught up.
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


class TopicPartition(NamedTuple):
    """A partition by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Topic:
    """What metadata say of a topic. Leaders are node ids by partition, -1 where there is none."""

    name: str
    topic_id: bytes
    is_internal: bool
    leaders: Mapping[int, int]


class Retry:
    """Attempts at one thing until a deadline, with growing pauses between them."""

    def __init__(self, settings: ConnectionSettings, what: str) -> None:
        self._settings = settings
        self._what = what
        self._started = time.monotonic()
        self._backoff_ms = float(settings.backoff_ms)

    def pause(self, problem: Exception) -> None:
        """Wait before the next attempt, or raise Unavailable if there is no time for one."""
        passed_ms = (time.monotonic() - self._started) * 1000
        if passed_ms + self._backoff_ms > self._settings.deadline_ms:
            raise Unavailable(
                f"could not {self._what} within {self._settings.deadline_ms} ms"
                f" (kafka.default.api.timeout.ms): {problem}"
            ) from problem
        time.sleep(self._backoff_ms / 1000 * random.uniform(0.8, 1.2))
        self._backoff_ms = min(self._backoff_ms * 2, self._settings.backoff_ms_max)


class Cluster:
    """See the module's text."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._links: dict[Address, Link] = {}
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, Topic] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    # Trying again

    def retry(self, what: str) -> Retry:
        """A new series of attempts; `what` follows "could not" in the error."""
        return Retry(self.settings, what)

    def attempt(self, what: str, action: Callable[[], T]) -> T:
        """The result of `action`, which is tried again where it may pass; it finds the link it
        needs itself each time. Raises Unavailable, or BrokerError where it will not pass."""
        retry = self.retry(what)
        while True:
            try:
                return action()
            except ConnectionLost as lost:
                self.forget_leaders()
                retry.pause(lost)
            except BrokerError as error:
                if error.code not in RETRIABLE:
                    raise
                self.forget_leaders()
                retry.pause(error)

    # Connections

    def link(self, address: Address) -> Link:
        """The connection to an address; raises ConnectionLost if there can be none now."""
        link = self._links.get(address)
        if link is None or link.is_closed or not link.is_idle:
            if link is not None:
                link.close()
            link = self._links[address] = Link(address, self.settings)
        return link

    def any_link(self) -> Link:
        """A connection to any broker; raises ConnectionLost if none can be reached now."""
        known = dict.fromkeys([*self._links, *self._brokers.values(), *self.settings.bootstrap])
        problem: ConnectionLost | None = None
        for address in known:
            try:
                return self.link(address)
            except ConnectionLost as lost:
                problem = problem or lost
        assert problem is not None
        raise problem

    def leader_link(self, topic: str, partition: int) -> Link:
        """The connection to a partition's leader.

        Raises ConnectionLost, or BrokerError: LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION."""
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
        return self.broker_link(node_id)

    def broker_link(self, node_id: int) -> Link:
        """The connection to a broker. Raises ConnectionLost, or BrokerError if it is not there."""
        address = self._brokers.get(node_id)
        if address is None:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node_id} now")
        return self.link(address)

    def coordinator_link(self, key: str, kind: int) -> Link:
        """The connection to the coordinator of a group (`GROUP`) or a transactional id
        (`TRANSACTION`). Raises ConnectionLost, or BrokerError."""
        address = self._coordinators.get((kind, key))
        if address is None:
            answer = self.any_link().call(
                FindCoordinatorRequest(key=key, key_type=kind),
                FindCoordinatorResponse,
                _FIND_ONE_VERSION,
            )
            _check(answer.error_code, f"finding the coordinator of {key!r}")
            address = Address(answer.host, answer.port)
            self._coordinators[kind, key] = address
        return self.link(address)

    def forget_leaders(self) -> None:
        """Ask again who leads and coordinates before the next request."""
        self._topics.clear()
        self._coordinators.clear()

    # Metadata

    def topic(self, name: str) -> Topic:
        """What is known of a topic, asked for if nothing is. See `topics` for what it raises."""
        return self._topics.get(name) or self.topics([name])[0]

    def topics(self, names: Iterable[str] | None = None) -> list[Topic]:
        """Fresh metadata of topics; None is all there are.

        Raises BrokerError for a topic that does not exist, Unavailable if no broker answers."""
        wanted = None if names is None else list(names)
        return self.attempt("get metadata", lambda: self._fetch_topics(wanted))

    def existing_topics(self, names: Iterable[str]) -> list[Topic]:
        """Fresh metadata of those of the topics that exist. Raises Unavailable."""
        wanted = list(names)
        return self.attempt("get metadata", lambda: self._fetch_topics(wanted, is_lenient=True))

    def _fetch_topics(self, names: list[str] | None, is_lenient: bool = False) -> list[Topic]:
        asked = None if names is None else [MetadataRequest.Topic(name=name) for name in names]
        answer = self.any_link().call(
            MetadataRequest(topics=asked, allow_auto_topic_creation=False), MetadataResponse
        )
        self._brokers = {row.node_id: Address(row.host, row.port) for row in answer.brokers}
        found = []
        for row in answer.topics:
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
        """The offset at each partition's timestamp, -1 where no record is as late; or at a named
        end of `wire.messages.list_offsets`. `is_committed` ends at the last stable offset.

        Raises BrokerError for a partition that does not exist; Unavailable."""
        found: dict[TopicPartition, int] = {}

        def ask() -> None:
            left = {key: value for key, value in wanted.items() if key not in found}
            by_leader: dict[Address, dict[TopicPartition, int]] = {}
            for key, value in left.items():
                address = self.leader_link(*key).address
                by_leader.setdefault(address, {})[key] = value
            for address, share in by_leader.items():
                found.update(self._list_offsets(self.link(address), share, is_committed))

        self.attempt("list offsets", ask)
        return found

    def _list_offsets(
        self, link: Link, wanted: Mapping[TopicPartition, int], is_committed: bool
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
        answer = link.call(request, ListOffsetsResponse)
        found = {}
        for topic in answer.topics:
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                _check(part.error_code, f"listing offsets of {key}")
                found[key] = part.offset
        return found


def _topic(row: MetadataResponse.Topic) -> Topic:
    return Topic(
        name=row.name or "",
        topic_id=row.topic_id,
        is_internal=row.is_internal,
        leaders={part.partition_index: part.leader_id for part in row.partitions},
    )


def _check(code: int, doing: str) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(code), f"the broker's answer to {doing}")
