"""DescribeConfigs beside Apache Kafka 4.3: every setting of topics, brokers and groups.

Both brokers get the same settings, and the same changes at run time. `config_difference.toml` lists
the remaining differences with their reasons.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from locations import FOLDER

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.kafka_process import kafka_broker
from harness.raw.raw_client import RawClient
from millstream.model.error import ErrorCode
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

pytestmark = pytest.mark.xdist_group("config-parity")

TOPIC, BROKER, GROUP = 2, 4, 32
#: The name, in `config_difference.toml`, of each resource that is described.
RESOURCES = {
    "topic": (TOPIC, "plain"),
    "topic with overrides": (TOPIC, "special"),
    "broker": (BROKER, "1"),
    "default": (BROKER, ""),
    "group": (GROUP, "g"),
}
#: What Kafka's one-node file sets, as the harness writes it.
KAFKA_FILE = {
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
#: The settings of both brokers: synonyms in other units, a setting that falls back to another one,
#: and settings without synonyms.
STATIC = {
    "log.retention.hours": "24",
    "log.roll.ms": "1000000",
    "log.flush.scheduler.interval.ms": "5000",
    "log.segment.bytes": "1048576000",
    "log.cleaner.io.max.bytes.per.second": "25000000",
    "compression.type": "lz4",
    "broker.rack": "r1",
}
OVERRIDES = {"retention.bytes": "1000", "compression.type": "gzip", "cleanup.policy": "compact"}
RUN_TIME = [
    (BROKER, "", {"log.retention.ms": "7000", "max.connections": "77", "log.cleaner.threads": "2"}),
    (BROKER, "", {"follower.replication.throttled.rate": "777"}),
    (BROKER, "1", {"log.retention.ms": "8000", "leader.replication.throttled.rate": "12345"}),
    (BROKER, "1", {"log.flush.interval.ms": "6000"}),
    (GROUP, "g", {"consumer.session.timeout.ms": "50000"}),
    (TOPIC, "special", {"min.cleanable.dirty.ratio": "0.25"}),
]
#: A defect of Kafka: once a setting was changed at run time, it shows these with their defaults,
#: although it names the file as their source.
KAFKA_FORGETS = {("broker", "log.retention.hours"), ("broker", "log.flush.scheduler.interval.ms")}


class Difference(NamedTuple):
    resource: str
    setting: str
    #: "kafka" or "millstream" if only that broker has the setting; else the field that differs.
    what: str


def describe(client: RawClient, kind: int, name: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a resource by name; none for a topic that is not known yet."""
    wanted = DescribeConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=[wanted], include_synonyms=True, include_documentation=True
    )
    (result,) = client.call(request).results
    if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return {}
    assert (result.error_code, result.error_message) == (0, ""), result
    return {
        row.name: {
            "value": row.value,
            "read_only": row.read_only,
            "source": int(row.config_source),
            "type": int(row.config_type),
            "sensitive": row.is_sensitive,
            "synonyms": [(each.name, each.value, int(each.source)) for each in row.synonyms],
            "documentation": bool(row.documentation),
        }
        for row in result.configs
    }


def create(client: RawClient, topic: str, configs: dict[str, str]) -> None:
    client.create_topic(topic, configs=configs)
    wait_until(lambda: describe(client, TOPIC, topic), f"{topic} to be known")


def change(client: RawClient, kind: int, name: str, settings: dict[str, str]) -> None:
    configs = [
        IncrementalAlterConfigsRequest.Resource.Config(name=key, config_operation=0, value=value)
        for key, value in settings.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configs=configs
    )
    (row,) = client.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert row.error_code == 0, row
    wait_until(
        lambda: all(
            describe(client, kind, name).get(key, {}).get("value") == value
            for key, value in settings.items()
        ),
        f"{settings} to be seen",
    )


def compare(kafka: RawClient, millstream: RawClient) -> Iterator[tuple[Difference, object, object]]:
    for resource, (kind, name) in RESOURCES.items():
        theirs, ours = describe(kafka, kind, name), describe(millstream, kind, name)
        for setting in sorted(theirs.keys() | ours.keys()):
            if setting not in ours or setting not in theirs:
                only = "kafka" if setting in theirs else "millstream"
                yield Difference(resource, setting, only), theirs.get(setting), ours.get(setting)
                continue
            for field, value in theirs[setting].items():
                if value != ours[setting][field]:
                    yield Difference(resource, setting, field), value, ours[setting][field]


def known() -> list[tuple[str, str, str]]:
    """Return resource, pattern and difference of each row of the file."""
    content = tomllib.loads((FOLDER / "config_difference.toml").read_text())
    return [
        (resource, pattern, what)
        for resource, rows in content.items()
        for row in rows
        for pattern in row["settings"]
        for what in ([row["only"]] if "only" in row else row["fields"])
    ]


def is_known(difference: Difference, row: tuple[str, str, str]) -> bool:
    resource, pattern, what = row
    return (
        difference.resource.split()[0] == resource
        and difference.what == what
        and fnmatchcase(difference.setting, pattern)
    )


@pytest.fixture(scope="module")
def kafka() -> Iterator[RawClient]:
    with kafka_broker() as broker:
        file = broker.folder / "server.properties"
        lines = [f"{name}={value}" for name, value in STATIC.items()]
        file.write_text("\n".join([file.read_text(), *lines, ""]))
        broker.start()
        host, port = broker.bootstrap.split(":")
        with RawClient(host, int(port), timeout_s=60) as client:
            yield client


@pytest.fixture(scope="module")
def millstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    folder: Path = tmp_path_factory.mktemp("parity")
    with (
        BrokerProcess(folder, {**KAFKA_FILE, **STATIC}) as broker,
        RawClient(broker.host, broker.port) as client,
    ):
        yield client


def test_every_difference_has_a_reason(kafka: RawClient, millstream: RawClient) -> None:
    for client in (kafka, millstream):
        create(client, "plain", {})
        create(client, "special", OVERRIDES)
    found = list(compare(kafka, millstream))
    for client in (kafka, millstream):
        for kind, name, settings in RUN_TIME:
            change(client, kind, name, settings)
    found += [
        row
        for row in compare(kafka, millstream)
        if row[0].what != "value" or (row[0].resource, row[0].setting) not in KAFKA_FORGETS
    ]
    rows = known()
    new = [row for row in found if not any(is_known(row[0], each) for each in rows)]
    assert not new, "\n".join(
        f"{each}: Kafka {theirs}, Millstream {ours}" for each, theirs, ours in new
    )
    stale = [each for each in rows if not any(is_known(row[0], each) for row in found)]
    assert not stale, "these no longer differ: " + ", ".join(map(str, stale))
