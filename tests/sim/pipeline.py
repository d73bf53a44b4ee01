"""Sends the batches of one transaction as real clients do: with several requests in flight.

A round sends all unacknowledged batches in order and waits for all responses. A request may have
batches for several partitions of one leader. The next round retries the batches that failed.

After a batch was rejected or lost, later batches of its partition may fail as out of sequence.
Without such a failure, an out-of-sequence error means that the broker reordered requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.history import Send
from millstream.model.error import ErrorCode
from millstream.replication.peer import Peer, PeerError
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse
from sim.client import TOPIC, Client

#: Requests that an idempotent producer may have in flight on a connection.
IN_FLIGHT_MAX = 5
#: Pauses between two requests: shorter and longer than the admission of a partition takes.
_PAUSES_S = (0.0, 0.0, 0.002, 0.01)


@dataclass(slots=True)
class Batch:
    """One record for one partition.

    Batches with the same `request` and the same leader go into one request."""

    request: int
    partition: int
    send: Send
    sequence: int
    data: bytearray
    is_acknowledged: bool = False
    #: None before the acknowledgement, and for a duplicate whose offset the broker no longer knows.
    offset: int | None = None

    @property
    def sent(self) -> Send:
        """The send, with the offset if it is known."""
        return Send(self.send.partition, self.send.value, self.offset)


@dataclass(slots=True)
class _Flight:
    batches: list[Batch]
    peer: Peer
    response: asyncio.Future[ProduceResponse]


async def send_round(
    client: Client,
    transactional_id: str,
    batches: Sequence[Batch],
    version: int,
    timeout_s: float,
    failed: Callable[[Batch, int, bool], None],
) -> None:
    """Send unacknowledged batches once.

    Calls `failed` with a batch, its error code (-1 if the response was lost), and whether an
    earlier batch of its partition failed in this round."""
    flights, lost = await _depart(client, transactional_id, batches, version)
    if flights:
        await asyncio.wait([flight.response for flight in flights], timeout=timeout_s)
    for flight in flights:
        if not flight.response.done():
            flight.peer.close()
    failed_partitions: dict[int, None] = {}

    def fail(batch: Batch, code: int) -> None:
        failed(batch, code, batch.partition in failed_partitions)
        failed_partitions[batch.partition] = None

    responses = [(flight.batches, _rows(flight)) for flight in flights]
    for together, rows in responses:
        for batch in together:
            row = rows.get(batch.partition)
            if row is None:
                fail(batch, -1)
            elif row.error_code == ErrorCode.NONE:
                batch.is_acknowledged = True
                batch.offset = row.base_offset
            elif row.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                # A retry after a restart: the broker knows only the producer's last batch.
                batch.is_acknowledged = True
            else:
                fail(batch, row.error_code)
    for batch in lost:
        fail(batch, -1)


async def _depart(
    client: Client, transactional_id: str, batches: Sequence[Batch], version: int
) -> tuple[list[_Flight], list[Batch]]:
    """Return the requests that were sent, and the batches that could not be sent."""
    peers: dict[int, Peer | None] = {}
    addresses: dict[int, tuple[str, int]] = {}
    for batch in batches:
        if batch.partition not in peers:
            address, _ = await client.leader(batch.partition)
            addresses[batch.partition] = address
            try:
                peers[batch.partition] = await client.peer(address)
            except PeerError as error:
                client.note(f"lost: {error}")
                peers[batch.partition] = None
    requests: dict[tuple[int, tuple[str, int]], list[Batch]] = {}
    lost: list[Batch] = []
    for batch in batches:
        if peers[batch.partition] is None:
            lost.append(batch)
        else:
            requests.setdefault((batch.request, addresses[batch.partition]), []).append(batch)
    flights: list[_Flight] = []
    for together in requests.values():
        await asyncio.sleep(client.random.choice(_PAUSES_S))
        peer = peers[together[0].partition]
        assert peer is not None
        request = _request(transactional_id, together)
        flights.append(_Flight(together, peer, peer.send(request, version, ProduceResponse)))
    return flights, lost


def _request(transactional_id: str, batches: Sequence[Batch]) -> ProduceRequest:
    rows = ProduceRequest.Topic.Partition
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=400,
        topic_data=[
            ProduceRequest.Topic(
                name=TOPIC,
                # The broker changes the bytes that it receives, so each attempt gets a copy.
                partition_data=[
                    rows(index=batch.partition, records=bytearray(batch.data)) for batch in batches
                ],
            )
        ],
    )


def _rows(flight: _Flight) -> dict[int, ProduceResponse.Topic.Partition]:
    """Return the rows of a response by partition; none if the response was lost."""
    response = flight.response
    if response.exception() is not None:
        return {}
    return {row.index: row for row in response.result().responses[0].partition_responses}
