"""Random histories of a classic group: it becomes stable, and no partition has two owners."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from groups.classic_world import (
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    World,
    replay,
    subscription,
)
from groups.member_commit import commit_of_member
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.classic.classic_state import ClassicState
from millstream.model.error import BrokerError, ErrorCode

PARTITIONS = range(5)
_REJOIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


class Client:
    """A consumer. `step` sends its next request, or handles its last response."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.protocols = [("range", subscription("t")), ("roundrobin", subscription("t"))]
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self.token: int | None = None
        self.phase = "join"
        self.is_fenced = False

    def step(self) -> None:
        if self.is_fenced:
            return
        if self.token is not None:
            response = self.world.responses.get(self.token)
            if response is not None:
                self.token = None
                self.receive(response)
        elif self.phase == "join":
            # An eager consumer revokes its partitions before it joins.
            self.owned = frozenset()
            self.token = self.world.join(
                self.member_id, instance_id=self.instance_id, protocols=self.protocols
            )
        elif self.phase == "stable":
            self.beat()

    def beat(self) -> None:
        """Send a heartbeat, also while a request waits, as real clients do."""
        if self.is_fenced or self.generation < 0:
            return
        code = self.world.heartbeat(self.member_id, self.generation, self.instance_id)
        if self.phase == "stable":
            self.note(code)

    def receive(self, response: Any) -> None:
        if self.phase == "join":
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            elif self.note(response.error_code):
                self.member_id, self.generation = response.member_id, response.generation_id
                self.phase = "sync"
                is_leader = response.leader == self.member_id and not response.skip_assignment
                decision = self.assign(response) if is_leader else None
                self.token = self.world.sync(
                    self.member_id, self.generation, decision, instance_id=self.instance_id
                )
        elif self.note(response.error_code):
            self.owned = pickle.loads(response.assignment) if response.assignment else frozenset()
            self.phase = "stable"

    def assign(self, response: Any) -> dict[str, bytes]:
        ids = [member.member_id for member in response.members]
        assert len(set(ids)) == len(ids)
        assert self.member_id in ids
        return {
            member_id: pickle.dumps(frozenset(PARTITIONS[place :: len(ids)]))
            for place, member_id in enumerate(ids)
        }

    def note(self, code: int) -> bool:
        """Handle an error code; return True if there is none."""
        if code == ErrorCode.NONE:
            return True
        self.phase = "join"
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.is_fenced = True
            self.owned = frozenset()
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation, self.owned = "", -1, frozenset()
        else:
            assert code in _REJOIN, ErrorCode(code).name
        return False


class ClassicGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(ClassicGroupSettings(initial_rebalance_delay_ms=INITIAL_DELAY_MS))
        self.clients: dict[str, Client] = {}
        self.count = 0

    def add(self, instance_id: str | None) -> None:
        self.count += 1
        name = f"c{self.count}"
        self.clients[name] = Client(self.world, name, instance_id)

    @rule()
    @precondition(lambda self: len(self.clients) < 6)
    def start_dynamic(self) -> None:
        self.add(None)

    @rule(name=st.sampled_from(["one", "two"]))
    @precondition(lambda self: len(self.clients) < 6)
    def start_static(self, name: str) -> None:
        """Start a client, even if another one with this instance id runs."""
        self.add(name)

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def crash(self, data: st.DataObject) -> None:
        del self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def leave(self, data: st.DataObject) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        self.world.leave((client.member_id, client.instance_id))

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def change_subscription(self, data: st.DataObject) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.protocols = [("range", subscription("t", "u")), *client.protocols[1:]]
        if client.phase == "stable":
            client.phase = "join"

    @rule(data=st.data(), steps=st.integers(1, 12))
    @precondition(lambda self: self.clients)
    def talk(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            self.clients[data.draw(st.sampled_from(sorted(self.clients)))].step()

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def all_talk(self, data: st.DataObject) -> None:
        """Let all clients but at most one make enough steps to complete a generation."""
        silent = data.draw(st.sampled_from(["", *sorted(self.clients)]))
        for _ in range(8):
            for name, client in self.clients.items():
                if name != silent:
                    client.step()
            self.world.advance(INITIAL_DELAY_MS // 4)
            for client in self.clients.values():
                client.beat()

    @rule(ms=st.sampled_from([1, 500, INITIAL_DELAY_MS, SESSION_MS, REBALANCE_MS]))
    def wait(self, ms: int) -> None:
        self.world.advance(ms)

    @rule(ms=st.sampled_from([SESSION_MS, REBALANCE_MS]))
    def wait_alive(self, ms: int) -> None:
        """Advance the time while all clients send heartbeats."""
        for _ in range(0, ms, SESSION_MS // 2):
            for client in self.clients.values():
                client.beat()
            self.world.advance(SESSION_MS // 2)

    @rule()
    def restart_broker(self) -> None:
        self.world.restart()
        for client in self.clients.values():
            if client.token is not None and client.token not in self.world.responses:
                # The connection was lost.
                client.token = None
                client.phase = "join"

    @invariant()
    def a_generation_that_was_assigned_is_never_forgotten(self) -> None:
        """The generation never falls below one that had an assignment. A restart may repeat the
        number of one that only had joins: no member owned partitions in it."""
        assigned = [c.generation for c in self.clients.values() if c.phase == "stable"]
        assert self.world.group.generation >= max(assigned, default=0)

    @invariant()
    def a_partition_has_one_owner_who_may_commit(self) -> None:
        owners: dict[int, str] = {}
        for client in self.clients.values():
            for partition in client.owned if not client.is_fenced else ():
                if self.may_commit(client):
                    assert partition not in owners, f"{owners[partition]} and {client.name}"
                    owners[partition] = client.name

    def may_commit(self, client: Client) -> bool:
        who = (client.member_id, client.instance_id, client.generation)
        try:
            # Only the check matters: the effects, which renew the session, are dropped.
            self.world.group.commit(self.world.now_ms, commit_of_member(*who))
        except BrokerError:
            return False
        return client.generation >= 0

    @invariant()
    def only_members_of_this_generation_may_commit(self) -> None:
        for client in self.clients.values():
            if self.may_commit(client):
                assert client.generation == self.world.group.generation
                assert client.member_id in self.world.group.roster

    @invariant()
    def no_member_waits_for_a_join_that_cannot_complete(self) -> None:
        """Every request that waits has a timer that ends the wait."""
        group = self.world.group
        waits = any(m.awaiting_join is not None for m in group.roster)
        assert not waits or ("join", "") in self.world.timers
        waits = any(m.awaiting_sync is not None for m in group.roster)
        assert not waits or ("sync", "") in self.world.timers

    @invariant()
    def silence_of_every_member_is_noticed(self) -> None:
        for member in self.world.group.roster:
            timed = ("session", member.member_id) in self.world.timers
            assert timed or member.is_awaiting_response

    @invariant()
    def totals_add_up(self) -> None:
        roster = self.world.group.roster
        assert roster.weight == sum(member.weight for member in roster)
        assert roster.awaiting_join_count == sum(m.awaiting_join is not None for m in roster)
        assert roster.static == {m.instance_id: m.member_id for m in roster if m.instance_id}
        assert (roster.leader_id in roster) if roster.members else roster.leader_id is None

    @invariant()
    def the_log_has_the_last_stable_generation(self) -> None:
        group = self.world.group
        if group.state is ClassicState.STABLE or (group.is_empty and group.generation):
            restored = replay(self.world)
            assert restored.generation == group.generation
            assert restored.state is group.state
            assert restored.roster.leader_id == group.roster.leader_id
            assert {m.member_id: m.assignment for m in restored.roster} == {
                m.member_id: m.assignment for m in group.roster
            }

    def teardown(self) -> None:
        """Without further faults all clients reach one generation that owns all partitions."""
        live = self.clients
        for _ in range(60):
            for _ in range(4):
                for client in list(live.values()):
                    client.step()
            for client in live.values():
                client.beat()
            self.world.advance(SESSION_MS // 3)
        members = [client for client in live.values() if not client.is_fenced]
        group = self.world.group
        if not members:
            assert group.is_empty
            return
        assert group.state is ClassicState.STABLE
        assert sorted(c.member_id for c in members) == sorted(group.roster.members)
        assert {c.generation for c in members} == {group.generation}
        owned = [partition for client in members for partition in client.owned]
        assert sorted(owned) == list(PARTITIONS)


TestClassicGroup = ClassicGroupMachine.TestCase
TestClassicGroup.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
