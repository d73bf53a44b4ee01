"""A group of members that reads one topic, and the faults that happen to the group.

    with Crew(brokers, start, plan, chance) as crew:
        crew.wait_until_stable()
        crew.kill(1)
        crew.finish()          # all records are read, and the checker finds no violation

The plan also holds the broker's settings, with sessions that expire quickly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from group_clients.checker import violations
from group_clients.feed import Feed
from group_clients.member import Member, Orders, Start
from harness.process.broker_process import wait_until
from harness.process.brokers import Brokers
from harness.seed import report


@dataclass(frozen=True, slots=True)
class Plan:
    members: int
    partitions: int
    records_per_second: int
    session_ms: int
    settle_seconds_max: float

    @property
    def heartbeat_ms(self) -> int:
        return self.session_ms // 8

    def settings(self) -> dict[str, object]:
        """The settings of the broker."""
        return {
            "group.initial.rebalance.delay.ms": 500,
            "group.min.session.timeout.ms": 500,
            "group.consumer.session.timeout.ms": self.session_ms,
            "group.consumer.heartbeat.interval.ms": self.heartbeat_ms,
            "offsets.topic.num.partitions": 4,
        }


class Crew:
    """The members of one group, and the producer of its topic."""

    def __init__(
        self,
        brokers: Brokers,
        start: Start,
        plan: Plan,
        chance: random.Random,
    ) -> None:
        self.plan = plan
        self._bootstrap = brokers.bootstrap
        self._start = start
        self._chance = chance
        self._partitions = plan.partitions
        self._admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        self._topic = f"work-{uuid4().hex}"
        self._group = f"crew-{uuid4().hex}"
        topic = NewTopic(self._topic, plan.partitions, len(brokers))
        self._admin.create_topics([topic])[self._topic].result(20)
        self._feed = Feed(brokers.bootstrap, self._topic, plan.partitions, plan.records_per_second)
        self.members: list[Member] = []
        self._gone: list[Member] = []

    def __enter__(self) -> Self:
        self._feed.start()
        self.fill()
        return self

    def __exit__(self, *_: object) -> None:
        for member in [*self.members, *self._gone]:
            member.dispose()
        self._feed.stop()

    # State

    def fill(self) -> None:
        """Start members up to the planned number."""
        plan = self.plan
        orders = Orders(
            self._bootstrap, self._group, self._topic, plan.session_ms, plan.heartbeat_ms
        )
        while len(self.members) < self.plan.members:
            name = f"{self._start.client.name}-{len(self.members) + len(self._gone)}"
            self.members.append(Member(self._start, name, orders))

    def wait_until_stable(self, *, without: Member | None = None) -> None:
        """Wait until the live members own all partitions, in equal shares."""
        awake = [member for member in self.members if member is not without]
        least, more = divmod(self._partitions, len(awake))

        def is_settled() -> bool:
            owned = [member.owned for member in awake]
            sizes = {len(each) for each in owned}
            return (
                sizes <= {least, least + bool(more)}
                and sum(map(len, owned)) == self._partitions
                and len(frozenset().union(*owned)) == self._partitions
            )

        try:
            wait_until(is_settled, "the group to settle", self.plan.settle_seconds_max)
        except AssertionError as error:
            state = {member.name: sorted(member.owned) for member in awake}
            error.add_note(f"members own {state}")
            raise

    # Faults

    def kill(self, count: int) -> None:
        """Kill members with SIGKILL at the same time, and replace them."""
        for member in self._chance.sample(self.members, count):
            self._remove(member)
            member.kill()
        self.wait_until_stable()
        self.fill()
        self.wait_until_stable()

    def restart_one(self) -> None:
        """Shut one member down, and replace it."""
        member = self._chance.choice(self.members)
        self._remove(member)
        member.end()
        self.fill()
        self.wait_until_stable()

    def fence_one(self) -> None:
        """Pause a member just before a commit until others own its partitions, then let it commit.
        The broker must reject the commit and keep the commits of the others."""
        member = self._chance.choice(self.members)
        member.ask_to_hold()
        member.wait_for_hold()
        count = len(member.history.commits)
        member.pause()
        self.wait_until_stable(without=member)
        before = self.committed()
        member.release()
        member.wake()

        def is_answered() -> bool:
            member.read()
            commits = member.history.commits
            return len(commits) > count and commits[count].answered_at is not None

        wait_until(is_answered, f"the response to the commit of {member.name}", 90)
        commit = member.history.commits[count]
        assert commit.is_refused, f"{member.name} committed {commit.offsets} though it was fenced"
        after = self.committed()
        moved_back = {number: at for number, at in before.items() if after[number] < at}
        assert not moved_back, f"a rejected commit moved {moved_back} to {after}"
        report(f"the commit of {member.name} was rejected: {commit.reason}")
        self.wait_until_stable()

    def pause_one(self) -> None:
        """Pause a member at a random moment until others own its partitions."""
        member = self._chance.choice(self.members)
        member.pause()
        self.wait_until_stable(without=member)
        member.wake()
        self.wait_until_stable()

    def add_partitions(self, count: int) -> None:
        self._partitions += count
        wanted = [NewPartitions(self._topic, self._partitions)]
        self._admin.create_partitions(wanted)[self._topic].result(20)
        self._feed.widen(self._partitions)
        self.wait_until_stable()

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        self._gone.append(member)

    # End

    def committed(self) -> dict[int, int]:
        """Return the committed offset of each partition; -1 without a commit."""
        wanted = [ConsumerGroupTopicPartitions(self._group)]
        found = self._admin.list_consumer_group_offsets(wanted)[self._group].result(20)
        offsets = {each.partition: each.offset for each in found.topic_partitions or ()}
        return {number: offsets.get(number, -1) for number in range(self._partitions)}

    def finish(self) -> None:
        """Stop the producer, wait until all records are committed, and check the histories."""
        self._feed.stop()
        ledger = self._feed.ledger()
        ends = {number: len(ledger.get(number, ())) for number in range(self._partitions)}
        self._wait_for_commits(ends)
        for member in self.members:
            member.ask_to_end()
        for member in self.members:
            member.wait_for_end()
        histories = [member.history for member in [*self._gone, *self.members]]
        found = violations(ledger, histories)
        assert not found, "\n".join(found[:20])
        written = sum(ends.values())
        processed = sum(history.processed_count for history in histories)
        ownerships = sum(len(history.ownerships) for history in histories)
        report(f"{written} records, {processed} processed, {ownerships} ownerships")

    def _wait_for_commits(self, ends: dict[int, int]) -> None:
        behind: dict[int, tuple[int, int]] = {}

        def is_done() -> bool:
            behind.clear()
            for number, at in self.committed().items():
                if max(at, 0) < ends[number]:
                    behind[number] = (at, ends[number])
            return not behind

        try:
            wait_until(is_done, "all records to be committed", self.plan.settle_seconds_max)
        except AssertionError as error:
            owners = {member.name: sorted(member.owned & behind.keys()) for member in self.members}
            error.add_note(f"behind (committed, end): {behind}; owners: {owners}")
            raise
