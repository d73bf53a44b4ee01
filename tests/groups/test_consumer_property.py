"""A consumer group with members that crash, hang, lose requests and responses, and come back.

Time is virtual. After every step no two members own a partition, in the group's state and in that
of its clients, and replaying the log gives the group's state. No member must revoke a partition of
its target, or gets one of an unsubscribed topic. In the end the group becomes stable: every
partition has exactly one owner.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from groups.consumer_world import ClassicClient, Client, ConsumerWorld, Place, places, replay
from groups.member_commit import commit_of_member
from millstream.groups.consumer.consumer_group import ConsumerGroupState
from millstream.groups.consumer.consumer_state import ConsumerState
from millstream.model.error import BrokerError, ErrorCode

NAMES = ["apples", "berries", "cherries"]
PATTERNS = [".*rries", "a.*|b.*", ".*"]

subscriptions = st.sets(st.sampled_from(NAMES)).map(sorted)
patterns = st.none() | st.sampled_from(PATTERNS)
instances = st.none() | st.sampled_from(["i1", "i2"])
numbers = st.integers(0, 4)


class ConsumerGroupMachine(RuleBasedStateMachine):
    @initialize(is_throttled=st.booleans())
    def begin(self, is_throttled: bool) -> None:
        """A group of three counts as large, so that its target assignments are delayed."""
        self.world = ConsumerWorld(large_group_size=3 if is_throttled else 100)
        self.clients: list[Client | ClassicClient] = []
        self.made = 0

    @property
    def alive(self) -> list[Client | ClassicClient]:
        return [client for client in self.clients if client.is_alive]

    def pick(self, number: int) -> Client | ClassicClient:
        return self.alive[number % len(self.alive)]

    # Events

    @precondition(lambda self: len(self.alive) < 5)
    @rule(
        names=subscriptions,
        pattern=patterns,
        instance=instances,
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def start(
        self, names: list[str], pattern: str | None, instance: str | None, assignor: str | None
    ) -> None:
        self.made += 1
        client = Client(f"m{self.made}", names, pattern, instance, assignor)
        self.clients.append(client)
        self.beat(client)

    @precondition(lambda self: len(self.alive) < 5 and not self.world.group.is_empty)
    @rule(names=subscriptions, instance=instances, is_eager=st.booleans())
    def start_classic(self, names: list[str], instance: str | None, is_eager: bool) -> None:
        client = ClassicClient(names, instance, is_eager)
        self.clients.append(client)
        self.beat(client)

    def beat(self, client: Client | ClassicClient) -> None:
        client.beat(self.world, arrives=True, is_answered=True)

    @precondition(lambda self: self.alive)
    @rule(number=numbers)
    def heartbeat(self, number: int) -> None:
        self.beat(self.pick(number))

    @precondition(lambda self: self.alive)
    @rule(number=numbers, arrives=st.booleans())
    def heartbeat_with_a_loss(self, number: int, arrives: bool) -> None:
        self.pick(number).beat(self.world, arrives=arrives, is_answered=False)

    @precondition(lambda self: self.alive)
    @rule(number=numbers)
    def give_up(self, number: int) -> None:
        self.pick(number).give_up()

    @precondition(lambda self: self.alive)
    @rule(number=numbers, names=subscriptions, pattern=patterns)
    def subscribe(self, number: int, names: list[str], pattern: str | None) -> None:
        client = self.pick(number)
        client.names = names
        if isinstance(client, Client):
            client.pattern, client.is_full = pattern, True
        else:
            client.is_joining = True

    @precondition(lambda self: self.alive)
    @rule(number=numbers)
    def crash(self, number: int) -> None:
        self.pick(number).is_alive = False

    @precondition(lambda self: self.alive)
    @rule(number=numbers, is_for_good=st.booleans())
    def leave(self, number: int, is_for_good: bool) -> None:
        client = self.pick(number)
        client.is_alive = False
        client.leave(self.world, is_for_good=is_for_good)

    @rule(rounds=st.integers(1, 8))
    def run_quietly(self, rounds: int) -> None:
        """All live clients send their next request, and no message is lost."""
        for _ in range(rounds):
            self.world.pass_time(4_000)
            for client in self.alive:
                self.beat(client)
                self.nothing_has_two_owners()
                client.give_up()

    @rule(by_ms=st.sampled_from([500, 5_000, 20_000, 31_000, 46_000]))
    def wait(self, by_ms: int) -> None:
        self.world.pass_time(by_ms)

    @rule(name=st.sampled_from(NAMES), more=st.integers(0, 3))
    def change_topic(self, name: str, more: int) -> None:
        self.world.change_topic(name, more)

    @rule()
    def reload(self) -> None:
        self.world.reload()

    @precondition(lambda self: self.alive)
    @rule(number=numbers)
    def commit(self, number: int) -> None:
        """Members may commit the partitions that they own; fenced clients may not commit."""
        client, group = self.pick(number), self.world.group
        member = group.state.members.get(client.member_id)
        now_ms = self.world.now_ms
        who = (client.member_id, client.instance_id, client.epoch)
        if member is None and not group.is_empty:
            with pytest.raises(BrokerError) as caught:
                group.commit(now_ms, commit_of_member(*who, partitions=client.owned))
            assert caught.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
        elif member is not None and client.epoch == member.current.epoch:
            group.commit(now_ms, commit_of_member(*who))

    # Invariants

    @invariant()
    def nothing_has_two_owners(self) -> None:
        members = self.world.group.state.members
        by_group: dict[Place, str] = {}
        for member_id, member in members.items():
            assigned, revoking = places(member.current.assigned), places(member.current.revoking)
            assert assigned.isdisjoint(revoking)
            for place in assigned | revoking:
                assert by_group.setdefault(place, member_id) == member_id
        existing = {topic.topic_id for topic in self.world.topics.values()}
        for client in self.alive:
            # A classic member cannot report partitions of a deleted topic, which has no name.
            can_say_all = isinstance(client, Client)
            for place in client.owned if client.member_id in members else ():
                if can_say_all or place[0] in existing:
                    assert by_group.get(place) == client.member_id

    @invariant()
    def the_log_gives_the_group(self) -> None:
        assert self.world.replica == self.world.group.state

    def teardown(self) -> None:
        """Without further faults the group is stable after some minutes."""
        if not hasattr(self, "world"):
            return
        self.run_quietly(40)
        if self.world.group.is_all_classic:
            # Classic members do not notice topic changes; a coordinator would downgrade the group.
            self.start(NAMES, None, None, None)
            self.run_quietly(40)
        self.check_settled()
        compacted = ConsumerState("g")
        replay(compacted, self.world.compacted_log())
        assert compacted == self.world.group.state

    def check_settled(self) -> None:
        group = self.world.group
        members = group.state.members
        # Of several clients with one instance id only one is a member.
        inside = [client for client in self.alive if client.member_id in members]
        assert len(inside) == len(members)
        state = group.group_state
        assert state is (ConsumerGroupState.STABLE if inside else ConsumerGroupState.EMPTY)
        owners: dict[Place, str] = {}
        for client in inside:
            current = members[client.member_id].current
            assert client.owned == places(current.assigned)
            assert client.epoch == current.epoch == group.state.epoch, client
            owners |= dict.fromkeys(client.owned, client.member_id)
        wanted = {
            (topic.topic_id, partition)
            for name, topic in self.world.topics.items()
            for partition in range(topic.partition_count)
            if group.is_subscribed(name)
        }
        assert owners.keys() == wanted
        assert sum(len(client.owned) for client in inside) == len(wanted)


def search(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ConsumerGroupMachine,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )


def test_random_histories() -> None:
    search(examples=80, steps=40)


# Longer than any history takes: a timeout would look like a failure that cannot be reproduced.
@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_long_histories() -> None:
    search(examples=5_000, steps=60)
