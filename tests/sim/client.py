"""Simulated clients: idempotent producers with acks=all, and consumers, over the wire protocol.

They do what real ones do: find the leader by asking any broker, repeat what was not answered, look
for another leader when told to. A producer has one request under way and repeats it, with its
sequence number, until it is acknowledged. An answer that no correct cluster can give is noted in
the history.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final, TypeVar

from harness.raw_client import produce_request, records_of, values_batch
from millstream.env.network import Network
from millstream.model.error import ErrorCode
from millstream.replication.peer import Peer, PeerError
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.produce import ProduceResponse
from millstream.wire.schema import Message
from sim.clock import EPOCH_MS
from sim.cluster import Cluster
from sim.history import Acknowledged, History, Seen, Value

TOPIC: Final = "events"
_TIMEOUT_S: Final = 0.5
_RETRY_S: Final = (0.02, 0.1)
#: What a correct broker never answers to these clients.
_IMPOSSIBLE: Final = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_REQUEST,
)

_Response = TypeVar("_Response", bound=Message)


class Client:
    """Connections to brokers, and who leads what."""

    def __init__(self, cluster: Cluster, name: str, history: History) -> None:
        self._cluster = cluster
        self.name = name
        self.host = name
        self.process = cluster.loop.process(name)
        self._network: Network = cluster.wire.network(name, self.process)
        self.random = Random(f"{cluster.seed} {name}")
        self.history = history
        self._peers: dict[tuple[str, int], Peer] = {}
        #: Leader and its epoch, by partition.
        self._leaders: dict[int, tuple[tuple[str, int], int]] = {}
        #: The newest epoch heard of, by partition: what a broker that is behind says is ignored.
        self._newest: dict[int, int] = {}

    def note(self, what: str) -> None:
        self._cluster.loop.note(f"{self.name} {what}")

    async def call(
        self, address: tuple[str, int], request: Any, version: int, response: type[_Response]
    ) -> _Response:
        peer = self._peers.get(address)
        if peer is None or peer.closed:
            peer = await Peer.connect(self._network, *address, self.name, _TIMEOUT_S)
            self._peers[address] = peer
        return await peer.call(request, version, response, _TIMEOUT_S)

    async def call_any(self, request: Any, version: int, response: type[_Response]) -> _Response:
        """Ask one broker after the other until one answers."""
        while True:
            try:
                address = self.random.choice(self._cluster.addresses)
                return await self.call(address, request, version, response)
            except PeerError:
                await self.rest()

    async def rest(self) -> None:
        low, high = _RETRY_S
        await asyncio.sleep(low + (high - low) * self.random.random())

    async def leader(self, partition: int) -> tuple[tuple[str, int], int]:
        while partition not in self._leaders:
            request = MetadataRequest(
                topics=[MetadataRequest.Topic(name=TOPIC)], allow_auto_topic_creation=False
            )
            answer = await self.call_any(request, 12, MetadataResponse)
            brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
            for row in answer.topics[0].partitions:
                newest = self._newest.get(row.partition_index, 0)
                if row.leader_id in brokers and row.leader_epoch >= newest:
                    self._newest[row.partition_index] = row.leader_epoch
                    leader = (brokers[row.leader_id], row.leader_epoch)
                    self._leaders[row.partition_index] = leader
            if partition not in self._leaders:
                await self.rest()
        return self._leaders[partition]

    def forget_leader(self, partition: int) -> None:
        self._leaders.pop(partition, None)

    def refused(self, what: str, code: int) -> None:
        """Note an error that can't be."""
        self.note(f"{what}: {ErrorCode(code).name}")
        if code in _IMPOSSIBLE:
            self.history.violated(f"{self.name}: {what} was answered {ErrorCode(code).name}")

    async def create_topic(self, assignments: list[list[int]], configs: dict[str, str]) -> None:
        rows = CreateTopicsRequest.Topic
        topic = rows(
            name=TOPIC,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                rows.Assignment(partition_index=number, broker_ids=replicas)
                for number, replicas in enumerate(assignments)
            ],
            configs=[rows.Config(name=name, value=value) for name, value in configs.items()],
        )
        answer = await self.call_any(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        row = answer.topics[0]
        assert row.error_code == 0, (row.error_code, row.error_message)


class Producer(Client):
    """Sends numbered values to one partition until told to finish."""

    def __init__(self, cluster: Cluster, number: int, partition: int, history: History) -> None:
        super().__init__(cluster, f"producer-{number}", history)
        self._number = number
        self._partition = partition
        self._sent = 0
        self.is_finishing = False
        #: Mean rest between requests.
        self.rest_s = self.random.choice((0.1, 0.2, 0.5))

    async def run(self) -> None:
        producer_id, epoch = await self._init()
        while not self.is_finishing:
            count = self.random.choice((1, 1, 2, 3))
            values = [Value(self._number, self._sent + i) for i in range(count)]
            batch = values_batch(
                *(value.encode() for value in values),
                timestamp=EPOCH_MS,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=self._sent,
            )
            offset = await self._send(batch)
            self._sent += count
            history = self.history.partitions[self._partition]
            for delta, value in enumerate(values):
                history.acknowledged.append(Acknowledged(value, offset + delta))
            self.note(f"acknowledged {values} at {offset}")
            await asyncio.sleep(self.random.expovariate(1 / self.rest_s))

    async def _init(self) -> tuple[int, int]:
        while True:
            answer = await self.call_any(InitProducerIdRequest(), 4, InitProducerIdResponse)
            if answer.error_code == 0:
                return answer.producer_id, answer.producer_epoch
            await self.rest()

    async def _send(self, batch: bytearray) -> int:
        while True:
            address, _ = await self.leader(self._partition)
            # The broker stamps the bytes that it gets, so each attempt has its own.
            request = produce_request(TOPIC, bytearray(batch), self._partition, timeout_ms=400)
            try:
                answer = await self.call(address, request, 12, ProduceResponse)
            except PeerError as error:
                self.note(f"lost: {error}")
            else:
                row = answer.responses[0].partition_responses[0]
                if row.error_code == 0:
                    return row.base_offset
                self.refused("a batch", row.error_code)
            self.forget_leader(self._partition)
            await self.rest()


class Consumer(Client):
    """Reads one partition from the start."""

    def __init__(self, cluster: Cluster, number: int, partition: int, history: History) -> None:
        super().__init__(cluster, f"consumer-{number}", history)
        self._partition = partition
        self.position = 0
        self.high_watermark = 0
        #: The largest high watermark told, by leader epoch.
        self._told: dict[int, int] = {}
        self.seen: list[Seen] = []

    async def run(self) -> None:
        self.history.partitions[self._partition].seen[int(self.name.split("-")[1])] = self.seen
        await self.read_on()

    async def read_on(self, until_end: bool = False) -> None:
        """Read for ever, or until the high watermark is reached."""
        while True:
            address, epoch = await self.leader(self._partition)
            try:
                answer = await self.call(address, self._request(epoch), 12, FetchResponse)
            except PeerError:
                self.forget_leader(self._partition)
                await self.rest()
                continue
            row = answer.responses[0].partitions[0]
            if row.error_code:
                self.refused(f"a fetch at {self.position}", row.error_code)
                self.forget_leader(self._partition)
                await self.rest()
                continue
            self._take(row, epoch)
            if until_end and self.position >= self.high_watermark:
                return

    def _request(self, epoch: int) -> FetchRequest:
        row = FetchRequest.Topic.Partition(
            partition=self._partition,
            current_leader_epoch=epoch,
            fetch_offset=self.position,
            partition_max_bytes=1 << 20,
        )
        topic = FetchRequest.Topic(topic=TOPIC, partitions=[row])
        return FetchRequest(max_wait_ms=250, min_bytes=1, max_bytes=1 << 20, topics=[topic])

    def _take(self, row: Any, epoch: int) -> None:
        if row.high_watermark < self._told.get(epoch, 0):
            self.history.violated(
                f"{self.name} was told a high watermark of {row.high_watermark} after "
                f"{self._told[epoch]} in epoch {epoch}"
            )
        self.high_watermark = self._told[epoch] = row.high_watermark
        for record in records_of(row.records):
            if record.offset >= self.position:
                assert record.value is not None
                self.seen.append(Seen(record.offset, Value.decode(bytes(record.value))))
                self.position = record.offset + 1
        self.note(f"at {self.position} of {row.high_watermark} in epoch {epoch}")
