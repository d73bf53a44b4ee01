"""A simulated client: its connections, and the leaders and coordinators that it knows.

It behaves like a real client: it asks any broker for a leader or a coordinator, and asks again
after an error. An error that no correct cluster returns is a violation in the history.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final, TypeVar

from millstream.env.network import Network
from millstream.model.error import ErrorCode
from millstream.replication.peer import Peer, PeerError
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.schema import Message
from sim import secure
from sim.cluster import Cluster
from sim.history import History

TOPIC: Final = "events"
GROUP_KEY, TRANSACTION_KEY = 0, 1
TIMEOUT_S: Final = 0.5
_RETRY_S: Final = (0.02, 0.1)
#: Errors that a correct broker never returns to these clients.
_IMPOSSIBLE: Final = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)

_Address = tuple[str, int]
_Response = TypeVar("_Response", bound=Message)


def partition_name(partition: int) -> str:
    """Return the name of a partition in histories."""
    return f"{TOPIC}-{partition}"


class Client:
    """One simulated client, in a process of its own."""

    def __init__(self, cluster: Cluster, name: str, history: History) -> None:
        self._cluster = cluster
        self.name = name
        self.host = name
        self.process = cluster.loop.process(name)
        self._network: Network = cluster.wire.network(name, self.process)
        self.random = Random(f"{cluster.seed} {name}")
        if cluster.is_secure:
            nonces = Random(f"{cluster.seed} {name} nonces")
            self._network = secure.client_network(self._network, name, nonces)
        self.history = history
        self._peers: dict[_Address, Peer] = {}
        #: Leader and its epoch, by partition.
        self._leaders: dict[int, tuple[_Address, int]] = {}
        #: The newest known epoch, by partition. Metadata with an older one is ignored.
        self._newest: dict[int, int] = {}
        self._coordinators: dict[tuple[int, str], _Address] = {}

    @property
    def now(self) -> float:
        return self._cluster.loop.time()

    def note(self, what: str) -> None:
        self._cluster.loop.note(f"{self.name} {what}")

    def violated(self, what: str) -> None:
        self.history.violated(f"{self.name}: {what}")

    # Requests

    async def call(
        self,
        address: _Address,
        request: Any,
        version: int,
        response: type[_Response],
        timeout_s: float = TIMEOUT_S,
    ) -> _Response:
        return await (await self.peer(address)).call(request, version, response, timeout_s)

    async def peer(self, address: _Address) -> Peer:
        """Return a connection to a broker. Raises PeerError."""
        peer = self._peers.get(address)
        if peer is None or peer.closed:
            peer = await Peer.connect(self._network, *address, self.name, TIMEOUT_S)
            self._peers[address] = peer
        return peer

    async def call_any(self, request: Any, version: int, response: type[_Response]) -> _Response:
        """Send a request to random brokers until one responds."""
        while True:
            try:
                address = self.random.choice(self._cluster.addresses)
                return await self.call(address, request, version, response)
            except PeerError:
                await self.rest()

    async def rest(self) -> None:
        low, high = _RETRY_S
        await asyncio.sleep(low + (high - low) * self.random.random())

    def refused(self, what: str, code: int) -> None:
        """Record an error; an impossible one is a violation."""
        self.note(f"{what}: {ErrorCode(code).name}")
        if code in _IMPOSSIBLE:
            self.violated(f"{what} failed with {ErrorCode(code).name}")

    # Leaders and coordinators

    async def leader(self, partition: int) -> tuple[_Address, int]:
        while partition not in self._leaders:
            request = MetadataRequest(
                topics=[MetadataRequest.Topic(name=TOPIC)], allow_auto_topic_creation=False
            )
            response = await self.call_any(request, 12, MetadataResponse)
            if not response.brokers:
                self.violated("a metadata response lists no brokers")
            brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
            for row in response.topics[0].partitions:
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

    async def coordinator(self, kind: int, key: str) -> _Address:
        while (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            response = await self.call_any(request, 4, FindCoordinatorResponse)
            (row,) = response.coordinators
            if row.error_code == 0:
                self._coordinators[kind, key] = (row.host, row.port)
            else:
                await self.rest()
        return self._coordinators[kind, key]

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)
