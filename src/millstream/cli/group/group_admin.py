"""The admin requests of the `group` commands, sent by librdkafka.

Results are plain values; failures are CommandErrors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.cli.group.offset_plan import Key
from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError, ExitCode, from_kafka_error, raise_failure
from millstream.cli.support.position import Range
from millstream.cli.support.terminal import counted, note
from millstream.cli.support.topic_config import Retention, retention_of, topic_configs

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AdminClient,
        ConsumerGroupDescription,
        ConsumerGroupListing,
        MemberDescription,
        OffsetSpec,
    )


class GroupState(StrEnum):
    """The states of a group by their Kafka names."""

    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    EMPTY = "Empty"
    DEAD = "Dead"
    UNKNOWN = "Unknown"


class GroupType(StrEnum):
    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    UNKNOWN = "Unknown"


#: librdkafka's names that differ from Kafka's in more than case.
_LIBRARY_STATES: Final = {
    "PREPARING_REBALANCING": GroupState.PREPARING_REBALANCE,
    "COMPLETING_REBALANCING": GroupState.COMPLETING_REBALANCE,
}
#: States of the consumer protocol, all of which librdkafka calls Unknown.
_NAMELESS_STATES: Final = frozenset({GroupState.ASSIGNING, GroupState.RECONCILING})


def state_of(group: ConsumerGroupDescription) -> GroupState:
    """Return the group's state.

    A state that librdkafka does not know follows from the members: a group reconciles while a
    member's assignment differs from its target, and otherwise computes an assignment."""
    state = _library_state(group)
    if state is not GroupState.UNKNOWN or type_of(group) is not GroupType.CONSUMER:
        return state
    if all(_is_reconciled(member) for member in group.members):
        return GroupState.ASSIGNING
    return GroupState.RECONCILING


def _library_state(group: ConsumerGroupListing | ConsumerGroupDescription) -> GroupState:
    name = group.state.name
    return _LIBRARY_STATES.get(name) or GroupState(name.capitalize())


def _is_reconciled(member: MemberDescription) -> bool:
    if member.target_assignment is None:
        return True
    current, target = (
        {(entry.topic, entry.partition) for entry in assignment.topic_partitions}
        for assignment in (member.assignment, member.target_assignment)
    )
    return current == target


def type_of(group: ConsumerGroupListing | ConsumerGroupDescription) -> GroupType:
    return GroupType(group.type.name.capitalize())


class ListedGroup(NamedTuple):
    group_id: str
    state: GroupState
    type: GroupType


class GroupAdmin:
    """Sends requests with a client that has reached a broker, so that no request waits for one."""

    __slots__ = ("_admin", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: AdminClient = connection.reach()[0]

    def groups(
        self, states: Iterable[GroupState], types: Iterable[GroupType]
    ) -> tuple[list[ListedGroup], list[CommandError]]:
        """Return the groups in these states and of these types, and the failures of brokers.

        No states or no types means all."""
        from confluent_kafka import ConsumerGroupState, ConsumerGroupType

        wanted = set(states)
        library_states = {ours: theirs for theirs, ours in _LIBRARY_STATES.items()}
        # librdkafka cannot filter by a state that it does not know, so it lists all groups then.
        asked = set() if wanted & _NAMELESS_STATES else wanted
        future = self._admin.list_consumer_groups(
            states={ConsumerGroupState[library_states.get(s, s.name)] for s in asked},
            types={ConsumerGroupType[kind.name] for kind in types},
            request_timeout=self._connection.timeout_s,
        )
        what = "cannot list groups"
        result = self._result(future, what)
        errors = [self._connection.failure(error, what) for error in result.errors]
        listed = self._named(result.valid)
        return [group for group in listed if not wanted or group.state in wanted], errors

    def _named(self, listings: Iterable[ConsumerGroupListing]) -> list[ListedGroup]:
        """Return the groups by name, with the states that librdkafka does not know."""
        groups = sorted(
            ListedGroup(str(each.group_id), _library_state(each), type_of(each))
            for each in listings
        )
        nameless = [
            group.group_id
            for group in groups
            if group.state is GroupState.UNKNOWN and group.type is GroupType.CONSUMER
        ]
        states = self._states(nameless)
        return [group._replace(state=states.get(group.group_id, group.state)) for group in groups]

    def _states(self, groups: list[str]) -> dict[str, GroupState]:
        """Return the states of groups. A group that was deleted meanwhile is left out."""
        if not groups:
            return {}
        futures = self._admin.describe_consumer_groups(
            groups, request_timeout=self._connection.timeout_s
        )
        states = {}
        for group, future in futures.items():
            try:
                states[group] = state_of(self._result(future, "cannot describe", group))
            except CommandError as failure:
                if failure.code is not ExitCode.NOT_FOUND:
                    raise
        return states

    def describe(self, group: str) -> ConsumerGroupDescription:
        """Return the group. Raises CommandError NOT_FOUND if it does not exist."""
        found = self.find(group)
        if found is None:
            raise _no_group(group)
        return found

    def find(self, group: str) -> ConsumerGroupDescription | None:
        """Return the group or None. Brokers call a group that does not exist dead."""
        _check_name(group)
        futures = self._admin.describe_consumer_groups(
            [group], request_timeout=self._connection.timeout_s
        )
        try:
            found = self._result(futures[group], f"cannot describe group {group!r}", group)
        except CommandError as failure:
            if failure.code is ExitCode.NOT_FOUND:
                return None
            raise
        return None if state_of(found) is GroupState.DEAD else found

    def committed(self, group: str) -> dict[Key, int]:
        """Return all committed offsets of the group."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        futures = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=self._connection.timeout_s
        )
        result = self._result(futures[group], f"cannot read the offsets of group {group!r}", group)
        return {
            (entry.topic, entry.partition): entry.offset
            for entry in result.topic_partitions
            if entry.error is None and entry.offset >= 0
        }

    def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic."""
        found = self._connection.metadata(self._admin, topic).topics[topic]
        if found.error is not None:
            what = f"cannot describe topic {topic!r}"
            raise from_kafka_error(found.error, what, self._connection.servers, topic)
        return sorted(found.partitions)

    def known_ranges(self, keys: Iterable[Key]) -> dict[Key, Range]:
        """Return the offsets of each partition whose leader responds."""
        return self._ranges(keys, lambda failure: None)

    def ranges(self, keys: Iterable[Key]) -> dict[Key, Range]:
        """Return the offsets of each partition; fail unless all leaders respond."""
        return self._ranges(keys, raise_failure)

    def _ranges(
        self, keys: Iterable[Key], on_failure: Callable[[CommandError], None]
    ) -> dict[Key, Range]:
        from confluent_kafka.admin import OffsetSpec

        asked = list(keys)
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        starts = self._list_offsets(asked, earliest, on_failure)
        ends = self._list_offsets(asked, latest, on_failure)
        return {
            key: Range(starts[key], ends[key]) for key in asked if key in starts and key in ends
        }

    def retentions(self, topics: Iterable[str]) -> dict[str, Retention]:
        """Return the retention of each topic. Topics that cannot be described are left out, with a
        note."""
        found = topic_configs(
            self._connection, self._admin, topics, lambda failure: note(str(failure))
        )
        return {topic: retention_of(configs) for topic, configs in found.items()}

    def first_since(self, keys: Iterable[Key], timestamp_ms: int) -> dict[Key, int]:
        """Return the first offset at or after a time, for partitions that have one."""
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.for_timestamp(timestamp_ms)
        found = self._list_offsets(keys, spec, raise_failure)
        return {key: offset for key, offset in found.items() if offset >= 0}

    def commit(self, group: str, offsets: Mapping[Key, int]) -> dict[Key, CommandError]:
        """Commit offsets of a group without members. Return the failures by partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

        entries = [TopicPartition(*key, offset) for key, offset in offsets.items()]
        futures = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, entries)],
            request_timeout=self._connection.timeout_s,
        )
        result = self._result(futures[group], f"cannot move group {group!r}", group)
        failures = {}
        for entry in result.topic_partitions:
            if entry.error is None:
                continue
            if entry.error.code() == KafkaError.UNKNOWN_MEMBER_ID:
                # A member joined after the check.
                raise active(group)
            what = f"cannot move {group!r} on {entry.topic}-{entry.partition}"
            failure = from_kafka_error(entry.error, what, self._connection.servers)
            failures[entry.topic, entry.partition] = failure
        return failures

    def delete(self, groups: Iterable[str]) -> dict[str, CommandError | None]:
        """Delete each group. Return its failure, or None."""
        names = list(groups)
        for name in names:
            _check_name(name)
        futures = self._admin.delete_consumer_groups(
            names, request_timeout=self._connection.timeout_s
        )
        outcomes: dict[str, CommandError | None] = {}
        for name, future in futures.items():
            try:
                self._result(future, f"cannot delete group {name!r}", name)
                outcomes[name] = None
            except CommandError as failure:
                outcomes[name] = failure
        return outcomes

    def _list_offsets(
        self,
        keys: Iterable[Key],
        spec: OffsetSpec,
        on_failure: Callable[[CommandError], None],
    ) -> dict[Key, int]:
        from confluent_kafka import TopicPartition

        asked = {TopicPartition(*key): spec for key in keys}
        if not asked:
            return {}
        futures = self._admin.list_offsets(asked, request_timeout=self._connection.timeout_s)
        found = {}
        for entry, future in futures.items():
            what = f"cannot look up the offsets of {entry.topic}-{entry.partition}"
            try:
                found[entry.topic, entry.partition] = int(self._result(future, what).offset)
            except CommandError as failure:
                on_failure(failure)
        return found

    def _result(self, future: Future[Any], what: str, group: str | None = None) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        try:
            return future.result()
        except KafkaException as exception:
            code = exception.args[0].code()
            if group is not None and code == KafkaError.GROUP_ID_NOT_FOUND:
                raise _no_group(group) from None
            if group is not None and code == KafkaError.NON_EMPTY_GROUP:
                raise active(group) from None
            raise self._connection.failure(exception, what) from None


def active(group: str, state: GroupState | None = None, members: int | None = None) -> CommandError:
    """Return the failure of an operation that needs a group without members."""
    known = "" if state is None else f" ({state}, {counted(members or 0, 'member')})"
    return CommandError(
        ExitCode.FAILED,
        f"group {group!r} is active{known}: stop its members first;"
        f" `millstream group members {group}` shows them.",
    )


def _no_group(group: str) -> CommandError:
    return CommandError(
        ExitCode.NOT_FOUND,
        f"group {group!r} does not exist: `millstream group list` shows all groups.",
    )


def _check_name(group: str) -> None:
    if not group:
        raise CommandError(ExitCode.USAGE, "a group's name cannot be empty.")
