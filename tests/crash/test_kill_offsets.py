"""`kill -9` while clients commit offsets: no acknowledged commit is lost or moves back, and no
offset appears that no client has sent.

CRASH_SEED repeats the moments of the kills. OFFSET_CRASH_ROUNDS sets the length of the soak.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from crash.committer import Committer, ConfluentCommitter, RawCommitter
from crash.killing import crash
from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient
from harness.seed import choose_seed, report
from millstream.model.error import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

ROUNDS_QUICK = 3
ROUNDS_SOAK = int(os.environ.get("OFFSET_CRASH_ROUNDS", "50"))
TOPIC = "positions"
PARTITIONS = 6
#: Small segments and an eager cleaner: kills also hit the compaction of commits.
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.segment.bytes": 32_768,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.backoff.ms": 20,
    "log.initial.task.delay.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 200,
}
_FETCH_BY_NAME = 9


def new_committers(bootstrap: str) -> list[Committer]:
    place = (bootstrap, TOPIC, PARTITIONS)
    classic = {"partition.assignment.strategy": "cooperative-sticky"}
    return [
        *(RawCommitter(f"raw-{number}", *place) for number in range(3)),
        *(ConfluentCommitter(f"simple-{number}", *place) for number in range(2)),
        ConfluentCommitter("classic", *place, classic),
        ConfluentCommitter("consumer", *place, {"group.protocol": "consumer"}),
    ]


def read_groups(
    client: RawClient, groups: Sequence[str]
) -> dict[str, list[OffsetFetchResponse.Group.Topic.Partition]]:
    """Return what each group has committed, once the broker has loaded the groups."""
    wanted = [OffsetFetchRequest.Group(group_id=group, topics=None) for group in groups]
    responses: list[OffsetFetchResponse.Group] = []

    def is_loaded() -> bool:
        responses[:] = client.call(OffsetFetchRequest(groups=wanted), _FETCH_BY_NAME).groups
        codes = {response.error_code for response in responses}
        assert codes <= {ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, codes
        return codes == {ErrorCode.NONE}

    wait_until(is_loaded, "the groups to be loaded")
    return {
        response.group_id: [row for topic in response.topics for row in topic.partitions]
        for response in responses
    }


def check(
    committer: Committer, rows: list[OffsetFetchResponse.Group.Topic.Partition]
) -> dict[int, int]:
    """Check the broker's offsets of one committer against what the committer sent."""
    group = committer.group
    found = {row.partition_index: row.committed_offset for row in rows}
    forgotten = committer.acknowledged.keys() - found.keys()
    assert not forgotten, f"{group}: the acknowledged commits to {forgotten} are forgotten"
    for row in rows:
        number, offset = row.partition_index, row.committed_offset
        acknowledged, asked = committer.acknowledged.get(number, 0), committer.asked[number]
        assert row.error_code == 0
        assert offset >= acknowledged, f"{group}: {number} went back from {acknowledged}"
        assert offset <= asked, f"{group}: {number} is at {offset}, asked was for {asked}"
        # confluent-kafka appends the NUL byte that ends a C string.
        metadata = (row.metadata or "").rstrip("\0")
        assert metadata == str(offset), f"{group}: {number} has another commit's metadata"
    return found


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(ROUNDS_QUICK, id="quick"),
        pytest.param(ROUNDS_SOAK, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_acknowledged_commits_survive(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(choose_seed("CRASH_SEED"))
    with BrokerProcess(tmp_path, SETTINGS) as broker, ExitStack() as stack:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic(TOPIC, PARTITIONS)
            client.call(FindCoordinatorRequest(coordinator_keys=["any"]))
        committers = new_committers(broker.bootstrap)
        for committer in committers:
            stack.callback(committer.close)
        seen: dict[str, dict[int, int]] = {}
        for number in range(rounds):
            counts = [committer.commit_count for committer in committers]
            for committer in committers:
                committer.start()
            try:
                if number == 0:
                    # A member needs some time to get its partitions.
                    wait_until(lambda: all(each.acknowledged for each in committers), "commits", 60)
                crash(broker, chance)
            finally:
                for committer in committers:
                    committer.stop()
            with RawClient(broker.host, broker.port) as client:
                found = read_groups(client, [committer.group for committer in committers])
            for committer in committers:
                now = check(committer, found[committer.group])
                before = seen.get(committer.group, {})
                assert all(now[place] >= offset for place, offset in before.items())
                seen[committer.group] = now
            assert sum(each.commit_count for each in committers) > sum(counts), "nobody committed"
        totals = {committer.group: committer.commit_count for committer in committers}
        report(f"{rounds} kills, commits acknowledged: {totals}")
        assert "Traceback" not in broker.log_text()
