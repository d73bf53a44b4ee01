"""Client metrics on one broker: subscriptions, client instances, pushes, and their series.

The subscriptions come from the metadata. Requests of clients are decided synchronously. Only the
reading of a payload yields to the loop, one payload at a time, and at most `PUSHES_PENDING_MAX`
pushes are pending.

Responses request cumulative sums, as Prometheus counts: then a lost push loses nothing.
Deltas are accepted too, and summed up here.

A client's series stay for a minute after its last push or its disconnection, so that a scrape sees
the final values. If a connected client falls silent, they stay for three push intervals, or a
minute if that is longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from millstream.broker.context import ConnectedClient, Context
from millstream.broker.metrics.label_budget import is_showable
from millstream.broker.telemetry.instance import EXPIRY_S_MIN, ClientInstance, ClientInstances
from millstream.broker.telemetry.otlp import OtlpError, read_metrics
from millstream.broker.telemetry.series import ClientSeries, Collected
from millstream.broker.telemetry.subscription import (
    TelemetrySubscription,
    parse_subscription,
    push_plan,
)
from millstream.env.clock import Clock
from millstream.env.random import Random
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata.image import ClusterImage
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import format_topic_id
from millstream.records.batch import CorruptBatch
from millstream.records.compression import CompressionType, decompress
from millstream.wire.messages.push_telemetry import PushTelemetryRequest

_logger = logging.getLogger(__name__)

PUSHES_PENDING_MAX: Final = 64
#: Metrics read before the reader yields to the loop.
SLICE_METRICS: Final = 50
#: The largest decompressed payload, as a multiple of `telemetry.max.bytes`.
EXPANSION_MAX: Final = 8
EXPIRY_CHECK_S: Final = 5.0
#: Ids that Kafka reserves.
RESERVED_IDS: Final = (bytes(16), bytes(15) + b"\x01")


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    #: Of one push, compressed or not.
    bytes_max: int
    #: Of all clients together.
    series_max: int


class Telemetry:
    """Client metrics, for the handlers. Exists only on a broker that serves metrics."""

    __slots__ = (
        "_clock",
        "_instances",
        "_pending",
        "_random",
        "_reading",
        "_subscriptions",
        "_task",
        "_version",
        "options",
        "pushes",
        "rejected",
        "series",
    )

    def __init__(self, clock: Clock, random: Random, options: TelemetryOptions) -> None:
        self._clock = clock
        self._random = random
        self.options = options
        self._instances = ClientInstances()
        self._subscriptions: dict[str, TelemetrySubscription] = {}
        #: Counts changes of the subscriptions.
        self._version = 0
        self._reading = asyncio.Lock()
        self._pending = 0
        self._task: SupervisedTask | None = None
        self.series = ClientSeries(options.series_max)
        #: Pushes accepted, and requests rejected by error.
        self.pushes = 0
        self.rejected: Counter[str] = Counter()

    @property
    def instances(self) -> int:
        return len(self._instances)

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start("client-metrics-expiry", self._expire_regularly)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    def set_subscriptions(self, image: ClusterImage) -> None:
        """Replace the subscriptions. Clients learn it from the response to their next push."""
        found: dict[str, TelemetrySubscription] = {}
        for name, configs in sorted(image.client_metrics.items()):
            try:
                found[name] = parse_subscription(name, configs)
            except BrokerError as error:
                _logger.error("client metrics subscription %r is ignored: %s", name, error.message)
        self._subscriptions = found
        self._version += 1

    def get(self, instance_id: bytes, context: Context) -> tuple[bytes, ClientInstance]:
        """Return the id and the push plan of a client; raise THROTTLING_QUOTA_EXCEEDED."""
        if instance_id == bytes(16):
            instance_id = self._new_id()
        instance = self._instance(instance_id, context)
        if not instance.accept_get(self._clock.monotonic()):
            raise self._reject(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        return instance_id, instance

    def push(self, request: PushTelemetryRequest, context: Context) -> Awaitable[None]:
        """Check a push, and return a coroutine that reads its metrics. Both raise BrokerError."""
        instance_id = bytes(request.client_instance_id)
        if instance_id in RESERVED_IDS:
            raise self._reject(ErrorCode.INVALID_REQUEST)
        instance = self._instance(instance_id, context)
        try:
            self._check_push(request, instance)
        except BrokerError as error:
            instance.last_error = error.code
            raise
        instance.last_error = ErrorCode.NONE
        self._pending += 1
        # The request's buffer is reused once this returns.
        payload = bytes(request.metrics)
        collected = Collected(_client_labels(instance_id, context))
        return self._accept(
            payload, CompressionType(request.compression_type), instance_id, collected
        )

    def disconnect(self, client: ConnectedClient) -> None:
        """Forget the client instance of a connection that has closed."""
        instance_id = client.client_instance_id
        if instance_id is not None and self._instances.remove(instance_id, client):
            self.series.expire_by(_text(instance_id), self._clock.monotonic() + EXPIRY_S_MIN)

    def _check_push(self, request: PushTelemetryRequest, instance: ClientInstance) -> None:
        was_terminated = instance.is_terminated
        instance.is_terminated = was_terminated or request.terminating
        if was_terminated:
            raise self._reject(ErrorCode.INVALID_REQUEST)
        now = self._clock.monotonic()
        if not instance.accept_push(now, is_last=request.terminating):
            raise self._reject(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if request.subscription_id != instance.plan.subscription_id:
            raise self._reject(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if request.compression_type not in tuple(CompressionType):
            raise self._reject(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if len(request.metrics) > self.options.bytes_max:
            raise self._reject(ErrorCode.TELEMETRY_TOO_LARGE)
        if self._pending >= PUSHES_PENDING_MAX:
            raise self._reject(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    async def _accept(
        self, payload: bytes, codec: CompressionType, instance_id: bytes, collected: Collected
    ) -> None:
        try:
            async with self._reading:
                await self._read(payload, codec, collected)
        except (OtlpError, CorruptBatch) as error:
            _logger.info(
                "rejected metrics pushed by client instance %s: %s", _text(instance_id), error
            )
            raise self._reject(ErrorCode.INVALID_RECORD) from error
        finally:
            self._pending -= 1
        self.pushes += 1
        if payload:
            self._show(instance_id, collected)

    async def _read(self, payload: bytes, codec: CompressionType, collected: Collected) -> None:
        if not payload:
            return
        plain = bytes(decompress(codec, payload, self.options.bytes_max * EXPANSION_MAX))
        for count, metric in enumerate(read_metrics(plain), 1):
            collected.add(metric)
            if count % SLICE_METRICS == 0:
                await asyncio.sleep(0)

    def _show(self, instance_id: bytes, collected: Collected) -> None:
        instance = self._instances.use(instance_id)
        expires_at = self._clock.monotonic() + EXPIRY_S_MIN
        if instance is not None and not instance.is_terminated:
            expires_at = max(expires_at, instance.expires_at)
        self.series.update(_text(instance_id), collected, expires_at)
        if instance is None:
            # The client has disconnected: nothing else would remove it from the folded clients.
            self.series.expire_by(_text(instance_id), expires_at)

    def _instance(self, instance_id: bytes, context: Context) -> ClientInstance:
        """Return the instance with its current plan. Another broker may have assigned the id."""
        client = context.client
        instance = self._instances.use(instance_id)
        if instance is None or instance.version < self._version:
            attributes = _attributes(instance_id, context)
            plan = push_plan(self._subscriptions.values(), attributes, instance_id)
            instance = ClientInstance(plan, self._version, client)
            evicted = self._instances.put(instance_id, instance)
            if evicted is not None:
                self.series.remove(_text(evicted))
        instance.touch(self._clock.monotonic(), client)
        client.client_instance_id = instance_id
        return instance

    def _new_id(self) -> bytes:
        """Return a random id (UUID version 4) that no client here has."""
        while True:
            number = self._random.getrandbits(128) & ~(0xF000 << 64) & ~(0b11 << 62)
            instance_id = (number | 0x4000 << 64 | 0b10 << 62).to_bytes(16, "big")
            if instance_id not in self._instances:
                return instance_id

    def _reject(self, code: ErrorCode) -> BrokerError:
        self.rejected[code.name] += 1
        return BrokerError(code)

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            self._expire()

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for instance_id in self._instances.expire(now):
            self.series.remove(_text(instance_id))
        self.series.expire(now)


def _text(instance_id: bytes) -> str:
    """Return an id as Kafka writes it."""
    return format_topic_id(instance_id)


def _attributes(instance_id: bytes, context: Context) -> dict[str, str | None]:
    client = context.client
    return {
        "client_instance_id": _text(instance_id),
        "client_id": context.client_id,
        "client_software_name": client.software_name,
        "client_software_version": client.software_version,
        "client_source_address": client.address,
        "client_source_port": str(client.port),
    }


def _client_labels(instance_id: bytes, context: Context) -> dict[str, str]:
    """Return the labels of all series of a client; empty where a text is not safe as a label."""
    texts = {
        "client_id": context.client_id,
        "client_software_name": context.client.software_name,
        "client_software_version": context.client.software_version,
    }
    labels = {name: text if text and is_showable(text) else "" for name, text in texts.items()}
    return labels | {"client_instance_id": _text(instance_id)}
