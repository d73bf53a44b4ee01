"""Many group members in one process that only send heartbeats, half of them of each protocol.

The program prints "ready" once all have an assignment, and sends heartbeats until SIGTERM. Then it
prints one JSON line: members, heartbeats, and members that had to rejoin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import uuid
from dataclasses import dataclass
from typing import Any

from bench.load.connection import Connection, find_coordinator

from millstream.env.termination import add_termination_handler
from millstream.model.error import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.schema import encode_prefixed

#: The defaults of clients.
SESSION_MS = 45_000
REBALANCE_MS = 300_000
HEARTBEAT_SECONDS = 3.0
READY_SECONDS_MAX = 180.0


@dataclass(slots=True)
class Counts:
    heartbeats: int = 0
    joins: int = 0


class ClassicMember:
    """A member of the classic protocol; the group's leader assigns no partitions."""

    def __init__(self, connection: Connection, group: str, topic: str, counts: Counts) -> None:
        self._connection = connection
        self._group = group
        self._counts = counts
        subscription = ConsumerProtocolSubscription(topics=[topic])
        self._metadata = encode_prefixed(subscription, 3)
        self._member_id = ""
        self._generation = -1

    async def join(self) -> None:
        while True:
            joined = await self._connection.call(self._join_request(), 9)
            self._member_id = joined.member_id or self._member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            _check("JoinGroup", joined.error_code)
            self._generation = joined.generation_id
            response = await self._connection.call(self._sync_request(joined), 5)
            if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            _check("SyncGroup", response.error_code)
            self._counts.joins += 1
            return

    def _join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=self._metadata)],
        )

    def _sync_request(self, joined: JoinGroupResponse) -> SyncGroupRequest:
        nothing = encode_prefixed(ConsumerProtocolAssignment(), 3)
        return SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequest.Assignment(member_id=each.member_id, assignment=nothing)
                for each in joined.members
            ],
        )

    async def beat(self) -> float:
        """Send one heartbeat. Return the seconds to the next."""
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._member_id
        )
        response = await self._connection.call(request, 4)
        self._counts.heartbeats += 1
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            await self.join()
        else:
            _check("Heartbeat", response.error_code)
        return HEARTBEAT_SECONDS


class ConsumerMember:
    """A member of the consumer protocol, which accepts and revokes partitions as assigned."""

    def __init__(self, connection: Connection, group: str, topic: str, counts: Counts) -> None:
        self._connection = connection
        self._group = group
        self._topic = topic
        self._counts = counts
        self._member_id = str(uuid.uuid4())
        self._epoch = 0
        self._owned: list[Any] | None = []

    async def join(self) -> None:
        await self.beat()
        self._counts.joins += 1

    async def beat(self) -> float:
        """Send one heartbeat, and a second one if the assignment must be acknowledged."""
        response = await self._connection.call(self._request(), 1)
        _check("ConsumerGroupHeartbeat", response.error_code)
        self._counts.heartbeats += 1
        self._epoch = response.member_epoch
        self._owned = None
        if response.assignment is not None:
            kind = ConsumerGroupHeartbeatRequest.TopicPartitions
            self._owned = [
                kind(topic_id=each.topic_id, partitions=each.partitions)
                for each in response.assignment.topic_partitions
            ]
            return await self.beat()
        return float(response.heartbeat_interval_ms) / 1000

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=self._epoch,
            topic_partitions=self._owned,
        )
        if self._epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = [self._topic]
        return request


def _check(what: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{what} failed with {ErrorCode(code).name}")


async def live(member: ClassicMember | ConsumerMember) -> None:
    while True:
        pause_seconds = await member.beat()
        await asyncio.sleep(pause_seconds)


async def run(options: argparse.Namespace) -> None:
    ended = asyncio.Event()
    add_termination_handler(asyncio.get_running_loop(), ended.set)
    await find_coordinator(options.bootstrap, "members-0")
    counts = Counts()
    members: list[ClassicMember | ConsumerMember] = []
    for number in range(options.members):
        place = number // options.group_size
        kind = ConsumerMember if place % 2 else ClassicMember
        connection = await Connection.open(options.bootstrap)
        members.append(kind(connection, f"members-{place}", options.topic, counts))
    async with asyncio.timeout(READY_SECONDS_MAX):
        await asyncio.gather(*(member.join() for member in members))
    print("ready", flush=True)
    before = Counts(counts.heartbeats, counts.joins)
    tasks = [asyncio.create_task(live(member)) for member in members]
    waiting = asyncio.create_task(ended.wait())
    # The failure of one member ends the program.
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    found = {
        "members": len(members),
        "heartbeats": counts.heartbeats - before.heartbeats,
        "joins": counts.joins - before.joins,
    }
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--group-size", type=int, default=10)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
