"""An idempotent producer with acks=all. It retries each request until it is acknowledged."""

from __future__ import annotations

import asyncio

from harness.history import Outcome, Send
from harness.raw.raw_client import produce_request, values_batch
from millstream.replication.peer import PeerError
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.produce import ProduceResponse
from sim.client import TOPIC, Client, partition_name
from sim.clock import EPOCH_MS
from sim.cluster import Cluster
from sim.history import History


class Producer(Client):
    """Sends numbered values to one partition until told to finish."""

    def __init__(self, cluster: Cluster, number: int, partition: int, history: History) -> None:
        super().__init__(cluster, f"producer-{number}", history)
        self._partition = partition
        self._sent = 0
        self.is_finishing = False
        #: Mean time between requests.
        self.rest_s = self.random.choice((0.1, 0.3, 0.6))

    async def run(self) -> None:
        producer_id, epoch = await self._init()
        where = partition_name(self._partition)
        while not self.is_finishing:
            count = self.random.choice((1, 1, 2, 3))
            values = [f"{self.name}:{self._sent + i}" for i in range(count)]
            batch = values_batch(
                *(value.encode() for value in values),
                timestamp=EPOCH_MS,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=self._sent,
            )
            operation = self.history.begin(self.name, [Send(where, value) for value in values])
            offset = await self._send(batch)
            self._sent += count
            sends = [Send(where, value, offset + place) for place, value in enumerate(values)]
            self.history.end(operation, Outcome.OK, sends)
            self.note(f"acknowledged {values} at {offset}")
            await asyncio.sleep(self.random.expovariate(1 / self.rest_s))

    async def _init(self) -> tuple[int, int]:
        while True:
            response = await self.call_any(InitProducerIdRequest(), 4, InitProducerIdResponse)
            if response.error_code == 0:
                return response.producer_id, response.producer_epoch
            await self.rest()

    async def _send(self, batch: bytearray) -> int:
        while True:
            address, _ = await self.leader(self._partition)
            # The broker changes the bytes that it receives, so each attempt gets a copy.
            request = produce_request(TOPIC, bytearray(batch), self._partition, timeout_ms=400)
            try:
                response = await self.call(address, request, 12, ProduceResponse)
            except PeerError as error:
                self.note(f"lost: {error}")
            else:
                row = response.responses[0].partition_responses[0]
                if row.error_code == 0:
                    return row.base_offset
                self.refused("a batch", row.error_code)
            self.forget_leader(self._partition)
            await self.rest()
