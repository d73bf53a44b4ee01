"""A member of a consumer group with the classic protocol.

It joins, assigns the partitions if it is the group's leader, and reads from the committed offsets.
It commits each read before the next one. If the outcome of a commit is unknown, the member leaves
the group and joins as a new member. The coordinator then rejects a commit that is still in transit,
so that the committed offset can't move back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from harness.history import Assign, Outcome, Poll
from millstream.model.error import ErrorCode
from millstream.replication.peer import PeerError
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.schema import Message
from sim.client import GROUP_KEY, TIMEOUT_S, TOPIC, partition_name
from sim.cluster import Cluster
from sim.history import History
from sim.reader import Fetched, Reader

GROUP: Final = "readers"
SESSION_MS: Final = 500
_JOIN_S: Final = 1.5
_FETCH_MS: Final = 50
_POLL_S: Final = 0.1
#: The member must join again. After UNKNOWN_MEMBER_ID it needs a new id.
_OUTDATED: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
_TRY_AGAIN: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.REQUEST_TIMED_OUT,
)

_Response = TypeVar("_Response", bound=Message)


class RefusedError(Exception):
    """An error code of the coordinator."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = code


class Member(Reader):
    """One member of a group."""

    def __init__(
        self, cluster: Cluster, number: int, partitions: Sequence[int], history: History
    ) -> None:
        super().__init__(cluster, f"member-{number}", history, committed=True)
        self._all = list(partitions)
        self._member_id = ""
        self._generation = -1
        #: Next offset of each assigned partition.
        self._positions: dict[int, int] = {}
        #: Time of the join request that led to this assignment.
        self._joined_at = 0.0

    async def run(self) -> None:
        while True:
            try:
                await self._join()
                await self._find_positions()
                while True:
                    await self._poll()
            except PeerError as error:
                self.note(f"lost its coordinator: {error}")
                self.forget_coordinator(GROUP_KEY, GROUP)
            except RefusedError as error:
                self._heed(error.code)
            await self.rest()

    def _heed(self, code: int) -> None:
        self.note(f"is told {ErrorCode(code).name}")
        if code in _TRY_AGAIN:
            self.forget_coordinator(GROUP_KEY, GROUP)
        elif code not in _OUTDATED:
            self.violated(f"the group's coordinator returned {ErrorCode(code).name}")
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""

    async def _ask(
        self,
        request: Any,
        version: int,
        response: type[_Response],
        timeout_s: float = TIMEOUT_S,
    ) -> _Response:
        address = await self.coordinator(GROUP_KEY, GROUP)
        return await self.call(address, request, version, response, timeout_s)

    # Joining

    async def _join(self) -> None:
        self._positions = {}
        self._joined_at = self.now
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="turns", metadata=b"")],
        )
        response = await self._ask(request, 9, JoinGroupResponse, _JOIN_S)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = self._member_id = response.member_id
            response = await self._ask(request, 9, JoinGroupResponse, _JOIN_S)
        _check(response.error_code)
        self._member_id, self._generation = response.member_id, response.generation_id
        await self._sync(
            _shares(response, self._all) if response.leader == response.member_id else {}
        )

    async def _sync(self, shares: dict[str, list[int]]) -> None:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="turns",
            assignments=[
                SyncGroupRequest.Assignment(member_id=member, assignment=bytes(share))
                for member, share in shares.items()
            ],
        )
        response = await self._ask(request, 5, SyncGroupResponse, _JOIN_S)
        _check(response.error_code)
        self._positions = dict.fromkeys(response.assignment, 0)

    async def _find_positions(self) -> None:
        for partition, offset in (await self.committed(list(self._positions))).items():
            self.history.check_fetched(self.name, GROUP, partition, offset, self._joined_at)
            self._positions[partition] = max(offset, 0)
        self.note(f"has {self._positions} in generation {self._generation}")
        names = [partition_name(partition) for partition in self._positions]
        self.history.end(self.history.begin(self.name), Outcome.OK, [Assign(names)])

    async def committed(self, partitions: list[int]) -> dict[int, int]:
        """Return the group's committed offsets; -1 for a partition without one."""
        if not partitions:
            return {}
        rows = OffsetFetchRequest.Group
        group = rows(group_id=GROUP, topics=[rows.Topic(name=TOPIC, partition_indexes=partitions)])
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        (group,) = (await self._ask(request, 9, OffsetFetchResponse)).groups
        _check(group.error_code)
        found = group.topics[0].partitions
        for row in found:
            _check(row.error_code)
        return {row.partition_index: row.committed_offset for row in found}

    # Reading and committing

    async def _poll(self) -> None:
        """Read and commit each partition once, then send a heartbeat."""
        for partition, position in list(self._positions.items()):
            fetched = await self.fetch(partition, position, _FETCH_MS)
            if fetched is not None and fetched.position > position:
                await self._commit(partition, fetched)
        await asyncio.sleep(_POLL_S)
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self._generation, member_id=self._member_id
        )
        _check((await self._ask(request, 4, HeartbeatResponse)).error_code)

    async def _commit(self, partition: int, fetched: Fetched) -> None:
        operation = self.history.begin(self.name)
        poll = Poll({partition_name(partition): fetched.records}, group=GROUP)
        rows = OffsetCommitRequest.Topic
        row = rows.Partition(partition_index=partition, committed_offset=fetched.position)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[rows(name=TOPIC, partitions=[row])],
        )
        try:
            response = await self._ask(request, 9, OffsetCommitResponse)
            code = response.topics[0].partitions[0].error_code
        except PeerError:
            self.history.end(operation, Outcome.INFO, [poll])
            await self._leave()
            raise
        if code:
            outcome = Outcome.FAIL if code in _OUTDATED else Outcome.INFO
            self.history.end(operation, outcome, [poll])
            if outcome is Outcome.INFO:
                await self._leave()
            raise RefusedError(code)
        self.history.end(operation, Outcome.OK, [poll])
        self.history.committed(GROUP, partition, fetched.position)
        self._positions[partition] = fetched.position

    async def _leave(self) -> None:
        member_id, self._member_id = self._member_id, ""
        request = LeaveGroupRequest(
            group_id=GROUP, members=[LeaveGroupRequest.Member(member_id=member_id)]
        )
        self.forget_coordinator(GROUP_KEY, GROUP)
        try:
            await self._ask(request, 5, LeaveGroupResponse)
        except PeerError as error:
            self.note(f"left without a word: {error}")


def _check(code: int) -> None:
    if code:
        raise RefusedError(code)


def _shares(response: JoinGroupResponse, partitions: list[int]) -> dict[str, list[int]]:
    """Assign partitions to members in round-robin order."""
    members = sorted(member.member_id for member in response.members)
    return {member: partitions[place :: len(members)] for place, member in enumerate(members)}
