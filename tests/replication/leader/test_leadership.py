"""A leader's decisions against a model of the store and of its followers' disks.

The model may deliver, delay and repeat every message. A proposal may reach the store late or twice.
A stored record may reach the leader late. Followers may restart with fewer records. One invariant
holds at every step: every replica that could be elected has all committed records.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.metadata.cluster_record import PartitionRecord
from millstream.replication.leader.follower_state import FollowerFetch
from millstream.replication.leader.isr import LeaderView
from millstream.replication.leader.leadership import IsrProposal, Leadership

LEADER = 1
FOLLOWERS = (2, 3)
LAG_S = 10.0
RECORD = PartitionRecord(replicas=(1, 2, 3), leader=1, leader_epoch=0, isr=(1, 2, 3))

followers = st.sampled_from(FOLLOWERS)


class LeaderAndStore(RuleBasedStateMachine):
    @initialize(isr=st.sampled_from([(1,), (1, 2), (1, 2, 3)]), length=st.integers(0, 5))
    def begin(self, isr: tuple[int, ...], length: int) -> None:
        self.now = 0.0
        self.stored = msgspec.structs.replace(RECORD, isr=isr)
        self.history = [self.stored]
        self.log_end_offset = length
        self.epoch_start_offset = length
        self.high_watermark = 0
        #: The real log end offset of each follower. Members of the ISR have all records.
        self.disks = {f: length if f in isr else 0 for f in FOLLOWERS}
        self.registered = dict.fromkeys(FOLLOWERS, 100)
        #: The registrations that the leader knows.
        self.known_registered = dict(self.registered)
        self.under_way: list[IsrProposal] = []
        self.leadership = Leadership(LEADER, self.stored, length, self.now)
        self.move()

    def view(self) -> LeaderView:
        return LeaderView(
            LEADER,
            self.log_end_offset,
            self.high_watermark,
            self.epoch_start_offset,
            self.known_registered,
            self.now,
            LAG_S,
        )

    def move(self) -> None:
        offset = self.leadership.committed_offset(self.log_end_offset)
        self.high_watermark = max(self.high_watermark, offset)

    # Events of the partition

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.log_end_offset += count
        self.move()

    @rule(follower=followers, count=st.integers(0, 4))
    def fetch(self, follower: int, count: int) -> None:
        """A follower appends the records of its last fetch, and fetches again."""
        self.disks[follower] = min(self.disks[follower] + count, self.log_end_offset)
        self.tell(follower, self.registered[follower], self.disks[follower])

    @rule(follower=followers, offset=st.integers(0, 30))
    def fetch_of_an_earlier_registration(self, follower: int, offset: int) -> None:
        state = self.leadership.followers[follower]
        if state.broker_epoch > 100:
            self.tell(follower, state.broker_epoch - 1, offset)

    def tell(self, follower: int, broker_epoch: int, offset: int) -> None:
        fetch = FollowerFetch(follower, broker_epoch, offset, 0, self.now)
        self.leadership.fetched(fetch, self.view())
        self.move()

    @rule(seconds=st.sampled_from([1.0, LAG_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.leadership.review(self.view())
        self.move()

    @rule(follower=followers, lost=st.integers(1, 30))
    def restart_with_less(self, follower: int, lost: int) -> None:
        """A follower registers again, and the controller removes it from the ISR at once."""
        if self.stored.isr == (follower,):
            return
        self.registered[follower] += 100
        self.disks[follower] = max(self.disks[follower] - lost, 0)
        if follower in self.stored.isr:
            left = tuple(each for each in self.stored.isr if each != follower)
            self.store(msgspec.structs.replace(self.stored, isr=left))

    # Messages between leader and store

    @rule()
    def propose(self) -> None:
        proposal = self.leadership.propose(self.view())
        if proposal is not None and len(self.under_way) < 6:
            self.under_way.append(proposal)
        self.move()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), is_delivered=st.booleans(), is_repeated=st.booleans())
    def deliver(self, data: st.DataObject, is_delivered: bool, is_repeated: bool) -> None:
        number = data.draw(st.integers(0, len(self.under_way) - 1))
        proposal = self.under_way[number]
        if not is_repeated:
            del self.under_way[number]
        if proposal.record.partition_epoch != self.stored.partition_epoch:
            return
        if any(self.registered[f] != epoch for f, epoch in proposal.joining.items()):
            if is_delivered:
                self.leadership.withdraw(proposal)
                self.move()
            return
        self.store(proposal.record)

    def store(self, record: PartitionRecord) -> None:
        epoch = self.stored.partition_epoch + 1
        self.stored = msgspec.structs.replace(record, partition_epoch=epoch)
        self.history.append(self.stored)

    @rule()
    def leader_hears_of_the_partition(self) -> None:
        """The leader applies one change, as the watch delivers them one by one."""
        epoch = self.leadership._state.partition_epoch + 1
        if epoch < len(self.history):
            self.leadership.update(self.history[epoch], self.now)
            self.move()

    @rule(follower=followers)
    def leader_hears_of_a_registration(self, follower: int) -> None:
        self.known_registered[follower] = self.registered[follower]
        self.leadership.review(self.view())
        self.move()

    # Invariants

    @invariant()
    def every_electable_replica_has_all_committed_records(self) -> None:
        for member in self.stored.isr:
            if member != LEADER:
                assert self.disks[member] >= self.high_watermark

    @invariant()
    def the_leader_is_in_its_own_isr(self) -> None:
        assert LEADER in self.stored.isr


LeaderAndStore.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLeaderAndStore = LeaderAndStore.TestCase


def view(leadership: Leadership, end: int, high_watermark: int, now: float = 0.0) -> LeaderView:
    alive = {2: 100, 3: 100}
    return LeaderView(LEADER, end, high_watermark, leadership.epoch_start_offset, alive, now, LAG_S)


def fetched(leadership: Leadership, follower: int, offset: int, end: int, now: float = 0.0) -> None:
    fetch = FollowerFetch(follower, 100, offset, 0, now)
    assert leadership.fetched(fetch, view(leadership, end, 0, now))


def test_nothing_is_committed_before_every_member_has_fetched() -> None:
    leadership = Leadership(LEADER, RECORD, 0, 0.0)
    assert leadership.committed_offset(5) == -1
    fetched(leadership, 2, 5, 5)
    assert leadership.committed_offset(5) == -1
    fetched(leadership, 3, 3, 5)
    assert leadership.committed_offset(5) == 3


def test_a_proposed_member_counts_before_the_proposal_is_stored() -> None:
    alone = msgspec.structs.replace(RECORD, isr=(1,))
    leadership = Leadership(LEADER, alone, 0, 0.0)
    fetched(leadership, 2, 5, 5)
    proposal = leadership.propose(view(leadership, 5, 5))
    assert proposal is not None
    assert (proposal.record.isr, proposal.joining) == ((1, 2), {2: 100})
    assert leadership.committed_offset(9) == 5
    assert leadership.propose(view(leadership, 9, 5, now=99.0)) is proposal


def test_a_leaving_member_counts_until_the_proposal_is_stored() -> None:
    leadership = Leadership(LEADER, RECORD, 0, 0.0)
    fetched(leadership, 2, 5, 5, now=LAG_S + 1)
    proposal = leadership.propose(view(leadership, 5, 0, now=LAG_S + 1))
    assert proposal is not None
    assert proposal.record.isr == (1, 2)
    assert leadership.committed_offset(5) == -1
    leadership.update(msgspec.structs.replace(proposal.record, partition_epoch=1), LAG_S + 1)
    assert leadership.committed_offset(5) == 5
    assert leadership.proposal is None


def test_commits_wait_for_a_caught_up_replica_until_it_joins_or_lags() -> None:
    alone = msgspec.structs.replace(RECORD, isr=(1,))
    leadership = Leadership(LEADER, alone, 0, 0.0)
    fetched(leadership, 2, 2, 9)
    assert leadership.committed_offset(9) == 9
    fetched(leadership, 2, 9, 9)
    assert leadership.committed_offset(12) == 9
    leadership.review(view(leadership, 12, 9, now=LAG_S / 2))
    assert leadership.committed_offset(12) == 9
    leadership.review(view(leadership, 12, 9, now=LAG_S + 1))
    assert leadership.committed_offset(12) == 12


def returned(leadership: Leadership, follower: int, offset: int, end: int, now: float) -> None:
    """Fetch as a broker with a new registration that the leader knows."""
    known = view(leadership, end, end, now)._replace(eligible={2: 100, 3: 100, follower: 200})
    assert leadership.fetched(FollowerFetch(follower, 200, offset, 0, now), known)


def test_commits_do_not_wait_for_a_replica_that_returned_with_fewer_records() -> None:
    leadership = Leadership(LEADER, RECORD, 0, 0.0)
    fetched(leadership, 2, 5, 5)
    fetched(leadership, 3, 5, 5)
    left = msgspec.structs.replace(RECORD, isr=(1, 2), partition_epoch=1)
    leadership.update(left, 0.0)
    fetched(leadership, 2, 90, 90, now=1.0)
    returned(leadership, 3, 5, 90, now=1.0)
    assert leadership.committed_offset(90) == 90
    returned(leadership, 3, 60, 90, now=1.1)
    assert leadership.committed_offset(90) == 90
    returned(leadership, 3, 90, 92, now=1.2)
    assert leadership.committed_offset(92) == 90, "replica 3 is about to join"


def test_a_member_that_returned_with_fewer_records_counts_until_it_left() -> None:
    leadership = Leadership(LEADER, RECORD, 0, 0.0)
    fetched(leadership, 2, 90, 90)
    fetched(leadership, 3, 90, 90)
    returned(leadership, 3, 5, 90, now=1.0)
    proposal = leadership.propose(view(leadership, 90, 90, now=1.0))
    assert proposal is not None
    assert proposal.record.isr == (1, 2)
    assert leadership.committed_offset(90) == 5
    leadership.update(msgspec.structs.replace(proposal.record, partition_epoch=1), 1.0)
    assert leadership.committed_offset(90) == 90


def test_a_replica_joins_only_past_the_start_of_the_leaders_epoch() -> None:
    alone = msgspec.structs.replace(RECORD, isr=(1,))
    leadership = Leadership(LEADER, alone, 8, 0.0)
    # The leader's high watermark is below its log end offset at the election.
    fetched(leadership, 2, 6, 6)
    assert leadership.propose(view(leadership, 9, 5)) is None
    fetched(leadership, 2, 8, 8)
    assert leadership.propose(view(leadership, 8, 5)) is not None


def test_replicas_follow_the_assignment() -> None:
    leadership = Leadership(LEADER, RECORD, 0, 0.0)
    fetched(leadership, 2, 5, 5)
    smaller = msgspec.structs.replace(RECORD, replicas=(1, 2), isr=(1, 2), partition_epoch=1)
    leadership.update(smaller, 0.0)
    assert leadership.committed_offset(5) == 5
    unassigned = FollowerFetch(3, 100, 5, 0, 0.0)
    assert not leadership.fetched(unassigned, view(leadership, 5, 5))


def looks(**fields: object) -> LeaderView:
    known = {2: 100, 3: 100}
    return LeaderView(LEADER, 0, 0, 0, known, 0.0, LAG_S)._replace(**fields)


def test_a_leader_whose_log_is_offline_resigns() -> None:
    leadership = Leadership(LEADER, RECORD, 0, 0.0)
    assert not leadership.wants_change(looks())
    assert leadership.wants_change(looks(has_failed=True))
    proposal = leadership.propose(looks(has_failed=True))
    assert proposal is not None
    assert (proposal.record.leader, proposal.record.isr) == (-1, (2, 3))
    alone = msgspec.structs.replace(RECORD, isr=(LEADER,))
    assert Leadership(LEADER, alone, 0, 0.0).propose(looks(has_failed=True)) is None


def test_a_leader_empties_the_elr_once_the_isr_is_at_its_minimum() -> None:
    record = msgspec.structs.replace(RECORD, isr=(1, 2), elr=(3,), last_known_elr=())
    leadership = Leadership(LEADER, record, 0, 0.0)
    assert not leadership.wants_change(looks(min_isr=3))
    assert leadership.wants_change(looks(min_isr=2))
    proposal = leadership.propose(looks(min_isr=2))
    assert proposal is not None
    assert (proposal.record.isr, proposal.record.elr) == ((1, 2), ())


def test_a_joining_replica_is_recorded_with_its_directory_id() -> None:
    record = msgspec.structs.replace(RECORD, isr=(1, 2), directories=((1, "a"), (3, "old")))
    leadership = Leadership(LEADER, record, 0, 0.0)
    known = looks(directories={1: "a", 2: "b", 3: "new"})
    assert leadership.fetched(FollowerFetch(3, 100, 0, 0, 0.0), known)
    proposal = leadership.propose(known)
    assert proposal is not None
    assert proposal.record.isr == (1, 2, 3)
    assert proposal.record.directories == ((1, "a"), (3, "new"))
