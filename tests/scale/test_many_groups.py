"""Very many groups with committed offsets on one broker, and how soon it serves them after a
restart.

The soak prints the times of commits, shutdown and loading. SCALE_GROUPS sets its size and
SCALE_COMMITS how often each group commits each partition.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient
from harness.seed import report
from millstream.model.error import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest

GROUPS_QUICK = 300
GROUPS_SOAK = int(os.environ.get("SCALE_GROUPS", "5000"))
COMMITS_SOAK = int(os.environ.get("SCALE_COMMITS", "3"))
PARTITIONS = 10
TOPIC = "positions"
RELOAD_SECONDS_MAX = 5.0
_IN_FLIGHT = 50
_GROUPS_PER_FETCH = 250
#: The last versions that have topic names instead of topic ids.
_BY_NAME = 9


def name_of(number: int) -> str:
    return f"group-{number:05d}"


def offset_of(group: int, partition: int, commit: int) -> int:
    return 1_000_000 * commit + 100 * group + partition


def commit_request(group: int, commit: int) -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequest.Topic.Partition(
            partition_index=number, committed_offset=offset_of(group, number, commit)
        )
        for number in range(PARTITIONS)
    ]
    topics = [OffsetCommitRequest.Topic(name=TOPIC, partitions=rows)]
    return OffsetCommitRequest(group_id=name_of(group), topics=topics)


def commit_all(client: RawClient, groups: int, commit: int) -> None:
    """Send one commit of every group, many in flight."""

    def receive() -> None:
        response = client.receive()
        assert {row.error_code for each in response.topics for row in each.partitions} == {0}

    for group in range(groups):
        client.send(commit_request(group, commit), _BY_NAME)
        if group >= _IN_FLIGHT:
            receive()
    for _ in range(min(groups, _IN_FLIGHT)):
        receive()


def check_all(client: RawClient, groups: int, commit: int) -> None:
    """Check that every group has its last commit."""
    for first in range(0, groups, _GROUPS_PER_FETCH):
        numbers = range(first, min(first + _GROUPS_PER_FETCH, groups))
        wanted = [OffsetFetchRequest.Group(group_id=name_of(n), topics=None) for n in numbers]
        responses = client.call(OffsetFetchRequest(groups=wanted), _BY_NAME).groups
        for number, response in zip(numbers, responses, strict=True):
            assert response.error_code == 0, response
            found = {
                row.partition_index: row.committed_offset
                for topic in response.topics
                for row in topic.partitions
            }
            assert found == {n: offset_of(number, n, commit) for n in range(PARTITIONS)}


def restart(broker: BrokerProcess) -> tuple[float, float]:
    """Return the seconds until the broker responds, and until all groups are loaded."""
    started = time.perf_counter()
    broker.start()
    ready_s = time.perf_counter() - started
    with RawClient(broker.host, broker.port) as client:

        def is_loaded() -> bool:
            code = client.call(ListGroupsRequest()).error_code
            assert code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), code
            return bool(code == ErrorCode.NONE)

        wait_until(is_loaded, "all groups to be loaded", 120)
    return ready_s, time.perf_counter() - started


def walk_through(broker: BrokerProcess, groups: int, commits: int) -> list[float]:
    """Commit, shut down and kill, check after each; return the seconds until groups are served."""
    broker.start()
    took: list[float] = []
    with RawClient(broker.host, broker.port, timeout_s=60) as client:
        client.create_topic(TOPIC, PARTITIONS)
        client.call(FindCoordinatorRequest(coordinator_keys=["any"]))
        started = time.perf_counter()
        for commit in range(commits):
            commit_all(client, groups, commit)
        rate = groups * commits / (time.perf_counter() - started)
        report(f"{groups} groups, {commits} commits each to {PARTITIONS} partitions: {rate:.0f}/s")
    for how, end in (("a clean stop", broker.stop), ("a kill", broker.kill)):
        end()
        ready_s, loaded_s = restart(broker)
        took.append(loaded_s)
        memory = f"{broker.rss_bytes() / 2**20:.0f} MiB"
        report(f"after {how}: ready in {ready_s:.2f} s, groups in {loaded_s:.2f} s, {memory}")
        with RawClient(broker.host, broker.port, timeout_s=60) as client:
            check_all(client, groups, commits - 1)
            listed = client.call(ListGroupsRequest())
            assert len(listed.groups) == groups
    assert "Traceback" not in broker.log_text()
    return took


def test_hundreds_of_groups(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    try:
        walk_through(broker, GROUPS_QUICK, 2)
    finally:
        broker.kill()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_thousands_of_groups(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, start_seconds_max=120)
    try:
        took = walk_through(broker, GROUPS_SOAK, COMMITS_SOAK)
        assert max(took) < RELOAD_SECONDS_MAX
    finally:
        broker.kill()
