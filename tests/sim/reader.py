"""Clients that fetch, and a consumer that reads one partition from the start.

A `read_committed` reader skips records of aborted transactions, as real clients do. A high
watermark that decreases within a leader epoch is a violation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.history import Outcome, Poll, Seen
from harness.raw.raw_client import records_of
from millstream.records.batch import scan
from millstream.records.control import read_marker
from millstream.replication.peer import PeerError
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from sim.client import TOPIC, Client, partition_name
from sim.cluster import Cluster
from sim.history import History


class Fetched(NamedTuple):
    records: list[Seen]
    #: Offset of the next fetch.
    position: int
    #: The high watermark, or the last stable offset for a `read_committed` reader.
    end: int


class Reader(Client):
    """A client that can fetch."""

    def __init__(self, cluster: Cluster, name: str, history: History, *, committed: bool) -> None:
        super().__init__(cluster, name, history)
        self.is_committed = committed
        #: The last high watermark in a response, by partition and leader epoch.
        self._watermarks: dict[tuple[int, int], int] = {}

    async def fetch(self, partition: int, position: int, wait_ms: int = 300) -> Fetched | None:
        """Fetch once. After an error, wait and return None."""
        address, epoch = await self.leader(partition)
        request = self._request(partition, position, epoch, wait_ms)
        try:
            response = await self.call(address, request, 12, FetchResponse)
        except PeerError:
            self.forget_leader(partition)
            await self.rest()
            return None
        row = response.responses[0].partitions[0]
        if row.error_code:
            self.refused(f"a fetch at {position} of {partition}", row.error_code)
            self.forget_leader(partition)
            await self.rest()
            return None
        self._check_high_watermark(partition, epoch, row.high_watermark)
        end = row.last_stable_offset if self.is_committed else row.high_watermark
        fetched = Fetched(*_visible_records(row, position), end)
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

    def _check_high_watermark(self, partition: int, epoch: int, high_watermark: int) -> None:
        before = self._watermarks.get((partition, epoch), 0)
        if high_watermark < before:
            self.violated(
                f"the high watermark of {partition} went from {before} to {high_watermark}"
                f" in epoch {epoch}"
            )
        self._watermarks[partition, epoch] = high_watermark


def _visible_records(row: Any, position: int) -> tuple[list[Seen], int]:
    """Return the records that a program sees of a response, and the next position."""
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
        """Read until the end of the partition."""
        while not await self._read(is_last=True):
            continue

    async def _read(self, *, is_last: bool = False) -> bool:
        """Fetch once. Return whether that reached the end."""
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
