"""Valid requests with very many elements: other clients wait briefly, memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient, fetch_request, values_batch
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.list_offsets import ListOffsetsRequest
from millstream.wire.messages.metadata import MetadataRequest

WIDTH = 20_000
#: Far more than any of these requests takes, and far less than quadratic work would take.
SECONDS_MAX = 15.0
GROWTH_BYTES_MAX = 100 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("wide")
    with BrokerProcess(folder) as process, RawClient(process.host, process.port) as client:
        client.create_topic("w", 50)
        client.produce("w", values_batch(bytes(10_000)))
        yield process


def _new(name: str) -> CreateTopicsRequest.Topic:
    return CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1)


_CONFIGS = DescribeConfigsRequest.Resource(resource_type=2, resource_name="w")
_ENDS = ListOffsetsRequest.Topic(
    name="w", partitions=[ListOffsetsRequest.Topic.Partition(timestamp=1)] * WIDTH
)
WIDE = {
    "names twice": CreateTopicsRequest(
        topics=[_new(f"a{n % (WIDTH // 2)}") for n in range(WIDTH)], validate_only=True
    ),
    "one topic over and over": MetadataRequest(
        topics=[MetadataRequest.Topic(name="w")] * WIDTH, allow_auto_topic_creation=False
    ),
    "one config over and over": DescribeConfigsRequest(resources=[_CONFIGS] * WIDTH),
    "one partition's offsets": ListOffsetsRequest(topics=[_ENDS]),
    "one partition's records": fetch_request([("w", 0, 0)] * WIDTH, max_bytes=1 << 20),
}


@pytest.mark.parametrize("what", WIDE)
def test_a_wide_request_is_no_weapon(broker: BrokerProcess, what: str) -> None:
    request: Any = WIDE[what]
    rss_before = broker.rss_bytes()
    with (
        RawClient(broker.host, broker.port, timeout_s=SECONDS_MAX) as attacker,
        RawClient(broker.host, broker.port, timeout_s=SECONDS_MAX) as neighbour,
    ):
        attacker.send(request, 12 if request.api_key == 1 else None)
        assert neighbour.produce("w", values_batch(b"x")).error_code == 0
        attacker.receive()
    assert broker.rss_bytes() - rss_before < GROWTH_BYTES_MAX
