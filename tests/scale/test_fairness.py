"""What a flood of one client costs the others, measured: the victim's latency with and without.

The victim produces one small record at a time. Three attackers run beside it, one after the other:

    requests   pipelined Metadata requests for no topic, on four connections
    metadata   pipelined Metadata requests for all of 200 topics
    rebalance  members that join a group and leave it again

Each attack is measured without a quota, and with a quota on the attacker's request time. `-s` shows
the figures; the assertions are only about orders of magnitude.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient, encode_frame, produce_request, values_batch
from millstream.client import Admin, QuotaEntity
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.soak

SECONDS: Final = 8.0
PIPELINED: Final = 500
CONNECTIONS: Final = 4
TOPICS: Final = 200
#: Percent of the event loop that all attackers have together.
QUOTA: Final = 10.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("fairness")) as process:
        with RawClient(process.host, process.port) as client:
            for number in range(TOPICS):
                client.create_topic(f"topic-{number}")
        yield process


def percentiles(broker: BrokerProcess) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum of the victim's latency, in ms."""
    latencies = []
    with RawClient(broker.host, broker.port, timeout_s=60) as client:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            began = time.perf_counter()
            client.call(produce_request("topic-0", values_batch(b"value")), 12)
            latencies.append((time.perf_counter() - began) * 1000)
            time.sleep(0.002)
    latencies.sort()
    return latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100], latencies[-1]


#: The program of one attacker: sends bursts of a request, and reads the responses.
FLOOD: Final = """
import socket, struct, sys
frame, count = bytes.fromhex(sys.argv[3]), int(sys.argv[4])
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
reader = connection.makefile("rb")
while True:
    connection.sendall(frame * count)
    for _ in range(count):
        reader.read(struct.unpack(">i", reader.read(4))[0])
"""


def _metadata(topics: list[MetadataRequest.Topic] | None) -> bytes:
    return encode_frame(MetadataRequest(topics=topics), 12, 1, "attacker")


def _join() -> bytes:
    protocol = JoinGroupRequest.Protocol(name="range", metadata=b"")
    request = JoinGroupRequest(
        group_id="stormy",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    return encode_frame(request, 3, 1, "attacker")


ATTACKS: Final[dict[str, Callable[[], bytes]]] = {
    "requests": lambda: _metadata([]),
    "metadata": lambda: _metadata(None),
    "rebalance": _join,
}


@contextmanager
def attacked(broker: BrokerProcess, name: str) -> Iterator[None]:
    frame = ATTACKS[name]().hex()
    program = [sys.executable, "-c", FLOOD, broker.host, str(broker.port), frame, str(PIPELINED)]
    # Processes: threads would share the victim's interpreter.
    attackers = [subprocess.Popen(program, stderr=subprocess.DEVNULL) for _ in range(CONNECTIONS)]
    try:
        yield
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.wait()


@contextmanager
def limited(broker: BrokerProcess) -> Iterator[None]:
    entity = QuotaEntity(client_id="attacker")
    with Admin(broker.bootstrap) as admin:
        admin.alter_quotas({entity: {"request_percentage": QUOTA}})
        try:
            yield
        finally:
            admin.alter_quotas({entity: {"request_percentage": None}})


def show(name: str, figures: tuple[float, float, float]) -> None:
    median, p99, maximum = figures
    print(f"\n{name:24} p50 {median:8.2f} ms   p99 {p99:8.2f} ms   max {maximum:8.2f} ms", end="")  # noqa: T201


@pytest.mark.parametrize("name", ATTACKS)
def test_a_flood_with_a_quota_leaves_others_alone(broker: BrokerProcess, name: str) -> None:
    alone = percentiles(broker)
    show(f"{name}: alone", alone)
    with attacked(broker, name):
        time.sleep(1)
        unlimited = percentiles(broker)
        show(f"{name}: no quota", unlimited)
    time.sleep(2)
    with limited(broker), attacked(broker, name):
        time.sleep(4)
        quoted = percentiles(broker)
        show(f"{name}: quota", quoted)
    print()  # noqa: T201
    # The first bursts of the window may pass. After that the victim is nearly alone.
    assert quoted[0] < max(10 * alone[0], 20)
