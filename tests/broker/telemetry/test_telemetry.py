"""Client metrics on one broker, without sockets: requests in, series out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from harness import otlp
from harness.in_process.manual_clock import ManualClock
from millstream.broker.context import ConnectedClient, Context
from millstream.broker.telemetry import telemetry as module
from millstream.broker.telemetry.instance import ClientInstance
from millstream.broker.telemetry.telemetry import Telemetry, TelemetryOptions
from millstream.env.supervisor import Supervisor
from millstream.metadata.image import ClusterImage
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.map import Map
from millstream.records.compression import CompressionType, compress
from millstream.wire.messages.push_telemetry import PushTelemetryRequest

BYTES_MAX = 10_000


class Home:
    def __init__(self, **subscription: str) -> None:
        self.clock = ManualClock()
        self.telemetry = Telemetry(
            self.clock, random.Random(1), TelemetryOptions(bytes_max=BYTES_MAX, series_max=100)
        )
        self.subscribe(**(subscription or {"metrics": "*", "interval.ms": "1000"}))

    def subscribe(self, **configs: str) -> None:
        self.telemetry.set_subscriptions(ClusterImage(client_metrics=Map({"s": Map(configs)})))

    def connect(self, client_id: str | None = "app") -> Client:
        return Client(self, client_id)


class Client:
    """One connection of a client."""

    def __init__(self, home: Home, client_id: str | None) -> None:
        self.home = home
        self.connected = ConnectedClient("127.0.0.1", 5000)
        self.connected.software_name, self.connected.software_version = "java", "4.3.0"
        services: Any = None
        self.context = Context(
            services, "PLAINTEXT", 0, client_id, self.connected, 0.0, CallbackFailures()
        )
        self.id = bytes(16)
        self.subscription_id = 0

    def get(self) -> ClientInstance:
        self.id, instance = self.home.telemetry.get(self.id, self.context)
        self.subscription_id = instance.plan.subscription_id
        return instance

    def begin(self, metrics: bytes, **fields: Any) -> Any:
        request = PushTelemetryRequest(
            client_instance_id=fields.get("id", self.id),
            subscription_id=fields.get("subscription_id", self.subscription_id),
            terminating=fields.get("terminating", False),
            compression_type=fields.get("compression_type", 0),
            metrics=metrics,
        )
        return self.home.telemetry.push(request, self.context)

    async def push(self, value: float = 1, **fields: Any) -> None:
        await self.begin(
            fields.pop("metrics", otlp.payload(otlp.gauge("g", otlp.point(value)))), **fields
        )


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def rejects(code: ErrorCode) -> Any:
    return pytest.raises(BrokerError, check=lambda error: error.code is code)


def shown(home: Home) -> dict[str, list[float]]:
    return {
        family.name: [value for _, value in family.rows]  # type: ignore[misc]
        for family in home.telemetry.series.families()
    }


def test_a_client_without_subscriptions_asks_again_after_five_minutes() -> None:
    home = Home(match="client_id=nobody", metrics="*")
    client = home.connect()
    wanted = client.get().plan
    assert (wanted.metrics, wanted.interval_ms) == ((), 300_000)
    assert client.id[6] >> 4 == 4, "a random UUID"
    with rejects(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        client.get()


@pytest.mark.parametrize("codec", list(CompressionType))
def test_a_push_becomes_series(codec: CompressionType) -> None:
    async def main() -> None:
        home = Home()
        client = home.connect("my app")
        client.get()
        plain = otlp.payload(
            otlp.counter("org.apache.kafka.producer.n.total", otlp.point(5, topic="t")),
            client_rack="r1",
        )
        await client.push(metrics=compress(codec, plain), compression_type=codec)
        (family,) = home.telemetry.series.families()
        ((values, value),) = family.rows
        labels = dict(zip(family.label_names, values, strict=True))
        assert (family.name, family.kind, value) == ("kafka_client_producer_n_total", "counter", 5)
        assert labels.pop("client_instance_id")
        assert labels == {
            "client_id": "my app",
            "client_software_name": "java",
            "client_software_version": "4.3.0",
            "client_rack": "r1",
            "topic": "t",
        }

    run(main())


def test_a_client_id_that_no_label_can_hold_is_left_out() -> None:
    async def main() -> None:
        home = Home()
        client = home.connect("a\0b")
        client.get()
        await client.push()
        (family,) = home.telemetry.series.families()
        ((values, _),) = family.rows
        assert dict(zip(family.label_names, values, strict=True))["client_id"] == ""

    run(main())


def test_pushes_that_are_rejected() -> None:
    async def main() -> None:
        home = Home()
        client = home.connect()
        for reserved in (bytes(16), bytes(15) + b"\x01"):
            with rejects(ErrorCode.INVALID_REQUEST):
                await client.push(id=reserved)
        client.get()
        with rejects(ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
            await client.push(subscription_id=client.subscription_id ^ 1)
        client.get()
        with rejects(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
            await client.push(compression_type=5)
        client.get()
        with rejects(ErrorCode.TELEMETRY_TOO_LARGE):
            await client.push(metrics=bytes(BYTES_MAX + 1))
        with rejects(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
            await client.push()
        home.clock.now += 1
        with rejects(ErrorCode.INVALID_RECORD):
            await client.push(metrics=b"\x0a\x7f")
        home.clock.now += 1
        with rejects(ErrorCode.INVALID_RECORD):
            await client.push(metrics=b"not gzip", compression_type=CompressionType.GZIP)
        assert (home.telemetry.pushes, shown(home)) == (0, {})
        assert home.telemetry.rejected == {
            "INVALID_REQUEST": 2,
            "UNKNOWN_SUBSCRIPTION_ID": 1,
            "UNSUPPORTED_COMPRESSION_TYPE": 1,
            "TELEMETRY_TOO_LARGE": 1,
            "THROTTLING_QUOTA_EXCEEDED": 1,
            "INVALID_RECORD": 2,
        }

    run(main())


@pytest.mark.parametrize(
    "codec",
    [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD],
)
def test_a_payload_that_decompresses_to_too_much_is_rejected(codec: CompressionType) -> None:
    async def main() -> None:
        home = Home()
        client = home.connect()
        client.get()
        bomb = compress(codec, bytes(BYTES_MAX * module.EXPANSION_MAX + 1))
        assert len(bomb) <= BYTES_MAX
        with rejects(ErrorCode.INVALID_RECORD):
            await client.push(metrics=bomb, compression_type=codec)

    run(main())


def test_after_the_last_push_there_is_no_other() -> None:
    async def main() -> None:
        home = Home()
        client = home.connect()
        client.get()
        await client.push(1)
        await client.push(2, terminating=True)
        assert shown(home) == {"kafka_client_g": [2]}
        home.clock.now += 10
        for terminating in (False, True):
            with rejects(ErrorCode.INVALID_REQUEST):
                await client.push(3, terminating=terminating)

    run(main())


def test_a_changed_subscription_is_requested_at_once() -> None:
    async def main() -> None:
        home = Home()
        client = home.connect()
        client.get()
        await client.push()
        home.subscribe(metrics="org.apache.kafka.producer.", **{"interval.ms": "5000"})
        with rejects(ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
            await client.push()
        assert client.get().plan[:2] == (("org.apache.kafka.producer.",), 5000)
        await client.push(2)
        assert shown(home) == {"kafka_client_g": [2]}

    run(main())


def test_a_client_may_move_between_brokers() -> None:
    async def main() -> None:
        first, second = Home(), Home()
        client = first.connect()
        client.get()
        await client.push(1)
        moved = second.connect()
        moved.id, moved.subscription_id = client.id, client.subscription_id
        await moved.push(2)
        assert shown(second) == {"kafka_client_g": [2]}

    run(main())


def test_series_stay_for_a_minute_after_a_client_has_gone() -> None:
    async def main() -> None:
        home = Home()
        client = home.connect()
        client.get()
        await client.push()
        home.telemetry.disconnect(client.connected)
        assert home.telemetry.instances == 0
        home.clock.now += 59.9
        home.telemetry.start(Supervisor())
        home.telemetry._expire()
        assert shown(home) == {"kafka_client_g": [1]}
        home.clock.now += 0.1
        home.telemetry._expire()
        assert shown(home) == {}
        await home.telemetry.stop()

    run(main())


def test_series_without_pushes_stay_for_three_intervals() -> None:
    async def main() -> None:
        home = Home(metrics="*", **{"interval.ms": "100000"})
        client = home.connect()
        client.get()
        await client.push()
        home.clock.now += 299.9
        home.telemetry._expire()
        assert (shown(home), home.telemetry.instances) == ({"kafka_client_g": [1]}, 1)
        home.clock.now += 0.1
        home.telemetry._expire()
        assert (shown(home), home.telemetry.instances) == ({}, 0)
        await home.telemetry.stop()

    run(main())


def test_a_client_that_came_back_does_not_leave_with_its_old_connection() -> None:
    async def main() -> None:
        home = Home()
        client = home.connect()
        client.get()
        again = home.connect()
        again.id, again.subscription_id = client.id, client.subscription_id
        await again.push()
        home.telemetry.disconnect(client.connected)
        assert home.telemetry.instances == 1
        home.telemetry.disconnect(again.connected)
        assert home.telemetry.instances == 0

    run(main())


def test_pushes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(module, "PUSHES_PENDING_MAX", 2)
        home = Home()
        clients = [home.connect() for _ in range(3)]
        for client in clients:
            client.get()
        metrics = otlp.payload(*(otlp.gauge("g", otlp.point(1, topic=str(n))) for n in range(200)))
        begun = [asyncio.ensure_future(client.begin(metrics)) for client in clients[:2]]
        with rejects(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
            clients[2].begin(metrics)
        await asyncio.sleep(0)
        assert not begun[0].done(), "a long payload gives way to others"
        await asyncio.gather(*begun)
        home.clock.now += 1
        await clients[2].push()

    run(main())


def test_a_push_outlives_its_connection() -> None:
    async def main() -> None:
        home = Home()
        client = home.connect()
        client.get()
        taking = asyncio.ensure_future(client.push())
        await asyncio.sleep(0)
        home.telemetry.disconnect(client.connected)
        await taking
        home.clock.now += 60
        home.telemetry._expire()
        assert (shown(home), home.telemetry.series.folded) == ({}, 0)
        await home.telemetry.stop()

    run(main())


def test_the_subscriptions_that_can_not_be_read_are_left_out() -> None:
    home = Home()
    broken = Map({"match": "client_id=("})
    good = Map({"metrics": "a"})
    home.telemetry.set_subscriptions(ClusterImage(client_metrics=Map({"1": broken, "2": good})))
    assert home.connect().get().plan.metrics == ("a",)
