"""Reading partitions: one fetch at a time, and consumers that read one from the start.

A reader of committed records leaves out what was aborted, as clients do. While a leader's epoch
lasts, no reader is told a smaller high watermark.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.history import Outcome, Poll, Seen
from harness.raw_client import records_of
from millstream.records.batch import scan
from millstream.records.control import read_marker
from millstream.replication.peer import PeerError
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from sim.client import TOPIC, Client, partition_name
from sim.cluster import Cluster
from sim.history import History


class Fetched(NamedTuple):
    records: list[Seen]
    #: Where the next fetch goes on.
    position: int
    #: What a reader of this kind can see of the log.
    end: int


class Reader(Client):
    """A client that can fetch."""

    def __init__(self, cluster: Cluster, name: str, history: History, *, committed: bool) -> None:
        super().__init__(cluster, name, history)
        self.is_committed = committed
        #: The largest high watermark told, by partition and leader epoch.
        self._told: dict[tuple[int, int], int] = {}

    async def fetch(self, partition: int, position: int, wait_ms: int = 300) -> Fetched | None:
        """One attempt; None if it came to nothing, and then it was time to rest."""
        address, epoch = await self.leader(partition)
        request = self._request(partition, position, epoch, wait_ms)
        try:
            answer = await self.call(address, request, 12, FetchResponse)
        except PeerError:
            self.forget_leader(partition)
            await self.rest()
            return None
        row = answer.responses[0].partitions[0]
        if row.error_code:
            self.refused(f"a fetch at {position} of {partition}", row.error_code)
            self.forget_leader(partition)
            await self.rest()
            return None
        self._look_at_high_watermark(partition, epoch, row.high_watermark)
        end = row.last_stable_offset if self.is_committed else row.high_watermark
        fetched = Fetched(*_take(row, position), end)
        self.note(f"at {fetched.position} of {end} of {partition} in epoch {epoch}")
        return fetched

    def _request(self, partition: int, position: int, epoch: int, wait_ms: int) -> FetchRequest:
        row = FetchRequest.Topic.Partition(
            partition=partition,
            current_leader_epoch=epoch,
            fetch_offset=position,
            partition_max_bytes=1 << 20,
        )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(self.is_committed),
            topics=[FetchRequest.Topic(topic=TOPIC, partitions=[row])],
        )

    def _look_at_high_watermark(self, partition: int, epoch: int, told: int) -> None:
        before = self._told.get((partition, epoch), 0)
        if told < before:
            self.violated(
                f"the high watermark of {partition} went from {before} to {told} in epoch {epoch}"
            )
        self._told[partition, epoch] = told


def _take(row: Any, position: int) -> tuple[list[Seen], int]:
    """What a program gets of a partition's answer, and where it goes on."""
    starts: dict[int, list[int]] = {}
    for each in row.aborted_transactions or ():
        starts.setdefault(each.producer_id, []).append(each.first_offset)
    aborting: set[int] = set()
    found: list[Seen] = []
    for place, header in scan(row.records) if row.records else ():
        producer_id = header.producer_id
        pending = starts.get(producer_id)
        if pending and pending[0] <= header.base_offset:
            aborting.add(producer_id)
        if header.is_control:
            marker = read_marker(row.records, header, place)
            if marker is not None and not marker.is_commit and producer_id in aborting:
                aborting.discard(producer_id)
                if pending:
                    pending.pop(0)
        elif not (header.is_transactional and producer_id in aborting):
            found += [
                Seen(record.offset, bytes(record.value or b"").decode())
                for record in records_of(row.records[place : place + header.size])
                if record.offset >= position
            ]
        position = max(position, header.next_offset)
    return found, position


class Consumer(Reader):
    """Reads one partition from the start."""

    def __init__(
        self, cluster: Cluster, name: str, partition: int, history: History, *, committed: bool
    ) -> None:
        super().__init__(cluster, name, history, committed=committed)
        self.partition = partition
        self.position = 0

    async def run(self) -> None:
        while True:
            await self._read()

    async def read_to_end(self) -> None:
        """Until everything was read that there is."""
        while not await self._read(is_last=True):
            continue

    async def _read(self, *, is_last: bool = False) -> bool:
        """One fetch; whether that was the end."""
        operation = self.history.begin(self.name)
        fetched = await self.fetch(self.partition, self.position)
        if fetched is None:
            self.history.end(operation, Outcome.OK, [])
            return False
        self.position = fetched.position
        is_end = fetched.position >= fetched.end
        if fetched.records or (is_last and is_end):
            where = partition_name(self.partition)
            ends = {where: fetched.position} if is_last and is_end else {}
            poll = Poll({where: fetched.records}, ends, committed=self.is_committed)
            self.history.end(operation, Outcome.OK, [poll])
        else:
            self.history.end(operation, Outcome.OK, [])
        return is_end
