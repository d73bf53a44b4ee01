"""A group's coordinator moves between brokers while offsets are committed: each coordinator knows
the offsets that earlier ones acknowledged."""

from __future__ import annotations

import threading
from pathlib import Path

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient
from harness.raw.raw_transaction import GROUP, find_coordinator
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.model.error import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest

TOPIC = "orders"
GROUP_ID = "g"
MOVES = 9
COMMIT_VERSION, FETCH_VERSION = 9, 9
RETRIABLE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def commit(client: RawClient, offset: int) -> int:
    wanted = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=GROUP_ID,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequest.Topic(name=TOPIC, partitions=[wanted])],
    )
    return int(client.call(request, COMMIT_VERSION).topics[0].partitions[0].error_code)


def fetch(client: RawClient) -> tuple[int, int]:
    """Return the error code and the committed offset."""
    group = OffsetFetchRequest.Group(
        group_id=GROUP_ID,
        topics=[OffsetFetchRequest.Group.Topic(name=TOPIC, partition_indexes=[0])],
    )
    (row,) = client.call(OffsetFetchRequest(groups=[group]), FETCH_VERSION).groups
    if row.error_code:
        return row.error_code, -1
    return 0, row.topics[0].partitions[0].committed_offset


def committed_offset(client: RawClient) -> int:
    """Return the committed offset, once the broker responds without an error."""
    responses: list[tuple[int, int]] = []

    def is_answered() -> bool:
        responses.append(fetch(client))
        return responses[-1][0] == 0

    wait_until(is_answered, "the coordinator to serve")
    assert {code for code, _ in responses} <= {0, *RETRIABLE}
    return responses[-1][1]


class Committer:
    """Commits increasing offsets, to the broker that coordinates the group."""

    def __init__(self, brokers: ServerSet) -> None:
        self._clients = {node_id: brokers.client(node_id) for node_id in brokers.servers}
        self.acknowledged = 0
        self.codes: set[int] = set()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        coordinator = 1
        while not self._is_stopped:
            code = commit(self._clients[coordinator], self.acknowledged + 1)
            self.codes.add(code)
            if code == 0:
                self.acknowledged += 1
            else:
                coordinator = self._find(coordinator)

    def _find(self, last: int) -> int:
        request = FindCoordinatorRequest(coordinator_keys=[GROUP_ID], key_type=GROUP)
        (row,) = self._clients[1].call(request).coordinators
        return row.node_id if row.error_code == 0 else last

    def stop(self) -> None:
        self._is_stopped = True
        self._thread.join()
        for client in self._clients.values():
            client.close()


def test_no_acknowledged_offset_is_lost(tmp_path: Path) -> None:
    with ServerSet(tmp_path) as brokers:
        with brokers.client(1) as client:
            client.create_topic(TOPIC, replication_factor=3)
            find_coordinator(client, GROUP_ID, GROUP)
        place = brokers.place(OFFSETS_TOPIC, GROUP_ID)
        committer = Committer(brokers)
        readers = {node_id: brokers.client(node_id) for node_id in brokers.servers}
        try:
            for move in range(MOVES):
                before = committer.acknowledged
                wait_until(lambda low=before: committer.acknowledged > low, "a commit")
                leader = move % len(readers) + 1
                brokers.lead(OFFSETS_TOPIC, place, leader)
                known = committer.acknowledged
                offset = committed_offset(readers[leader])
                assert offset >= known, f"the coordinator on {leader} lost an acknowledged offset"
            assert committer.codes <= {0, *RETRIABLE}
        finally:
            committer.stop()
            for reader in readers.values():
                reader.close()
