"""Any interleaving of requests, crashes, timeouts and several producers with one id.

Each transaction commits on every partition or aborts on every partition. The result that a producer
got is the result in the partitions. A fenced producer never writes. After the timeout no
transaction is open.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.seed import choose_seed
from millstream.transactions.state import LAST_EPOCH
from transactions.transaction_world import TIMEOUT_MS, World

_versions = st.sampled_from([0, 2])
#: Only a few epochs are left, so that producer ids change.
_NEARLY_LAST = LAST_EPOCH - 4


class Transactions(RuleBasedStateMachine):
    @initialize(
        version=_versions,
        client_versions=st.lists(_versions, min_size=2, max_size=2),
        first_epoch=st.sampled_from([-1, _NEARLY_LAST]),
    )
    def begin(self, version: int, client_versions: list[int], first_epoch: int) -> None:
        self.world = World(version, client_versions, first_epoch)

    @precondition(lambda self: self.world.actions())
    @rule(choice=st.integers(0, 2**16))
    def carry_out_transaction(self, choice: int) -> None:
        actions = self.world.actions()
        actions[choice % len(actions)]()

    @precondition(lambda self: self.world.pipeline)
    @rule()
    def commit_next(self) -> None:
        self.world.commit_next()

    @precondition(lambda self: self.world.markers)
    @rule(place=st.integers(0, 5), is_acknowledged=st.booleans())
    def deliver_marker(self, place: int, is_acknowledged: bool) -> None:
        place %= len(self.world.markers)
        self.world.deliver_marker(place, is_acknowledged=is_acknowledged)

    @precondition(lambda self: self.world.pipeline or self.world.markers)
    @rule()
    def finish_all(self) -> None:
        self.world.finish_all()

    @rule(ms=st.integers(1, TIMEOUT_MS))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @precondition(lambda self: self.world.log)
    @rule()
    def crash(self) -> None:
        self.world.crash()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_end()


Transactions.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestTransactions = Transactions.TestCase


def _walk(chooser: random.Random, steps: int) -> Counter[str]:
    """Run one history in which most messages arrive."""
    versions = [chooser.choice([0, 2]) for _ in range(3)]
    world = World(versions[0], versions[1:], chooser.choice([-1, _NEARLY_LAST]))
    done: Counter[str] = Counter()
    for _ in range(steps):
        roll = chooser.random()
        actions = world.actions()
        if roll < 0.5 and actions:
            chooser.choice(actions)()
        elif roll < 0.7 and world.pipeline:
            world.commit_next()
        elif roll < 0.8 and world.markers:
            place = chooser.randrange(len(world.markers))
            world.deliver_marker(place, is_acknowledged=chooser.random() < 0.8)
        elif roll < 0.93:
            world.finish_all()
        elif roll < 0.97:
            world.pass_time(chooser.randint(1, TIMEOUT_MS + 1))
        elif world.log:
            world.crash()
        world.check()
    world.check_end()
    for client in world.clients:
        done["committed"] += sum(client.ended.values())
        done["aborted"] += len(client.ended) - sum(client.ended.values())
    done["rotated"] += world.transaction.previous_producer_id >= 0
    return done


def _walk_all(count: int) -> Counter[str]:
    seed = choose_seed("TRANSACTION_SEED")
    done: Counter[str] = Counter()
    for number in range(count):
        try:
            done += _walk(random.Random(f"{seed}-{number}"), 80)
        except AssertionError as error:
            error.add_note(f"history {number} of seed {seed}")
            raise
    return done


def test_random_histories() -> None:
    done = _walk_all(600)
    assert min(done["committed"], done["aborted"], done["rotated"]) > 0, done


@pytest.mark.soak
def test_many_random_histories() -> None:
    _walk_all(50_000)
