from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient, values_batch
from harness.raw.raw_transaction import (
    CLASSIC_PRODUCE,
    RawProducer,
    committed_values,
    find_coordinator,
)
from millstream.model.error import ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

_numbers = count()


@pytest.fixture
def client(broker: str) -> Iterator[RawClient]:
    host, _, port = broker.rpartition(":")
    with RawClient(host, int(port)) as connection:
        find_coordinator(connection, "any")
        yield connection


@pytest.fixture
def producer(client: RawClient, topic: str) -> RawProducer:
    """A producer with an open transaction that has one value in partition 0 of the topic."""
    made = RawProducer(client, f"txn-{os.getpid()}-{next(_numbers)}")
    made.init()
    assert made.produce(topic, b"value") == 0
    return made


def test_list_with_filters(ask: Run, producer: RawProducer) -> None:
    name = producer.transactional_id
    shown = ask("txn", "list")
    assert shown.code == 0
    assert name in shown.out
    row = {
        "transactional_id": name,
        "coordinator": 1,
        "producer_id": producer.producer_id,
        "state": "Ongoing",
    }
    for filters in (
        ["--producer-id", str(producer.producer_id)],
        [f"{name[:-1]}*", "--state", "Ongoing", "--state", "Empty"],
    ):
        assert json.loads(ask("txn", "list", "--json", *filters).out) == [row]
    assert name not in ask("txn", "list", "--state", "Empty").out
    assert name not in ask("txn", "list", "--open-for", "1m").out
    assert "No transactions match" in ask("txn", "list", "nobody").error


def test_describe(ask: Run, producer: RawProducer, topic: str) -> None:
    shown = ask("txn", "describe", producer.transactional_id)
    assert shown.code == 0
    assert f"{topic}-0" in shown.out
    found = json.loads(ask("txn", "describe", producer.transactional_id, "--json").out)
    assert found["state"] == "Ongoing"
    assert found["partitions"] == [f"{topic}-0"]
    assert (found["producer_id"], found["producer_epoch"]) == (producer.producer_id, 0)
    missing = ask("txn", "describe", "nobody")
    assert missing.code == 3
    assert "no transactional id 'nobody'" in missing.error


def test_aborting_an_id_fences_its_producer(
    ask: Run, client: RawClient, producer: RawProducer, topic: str
) -> None:
    name = producer.transactional_id
    assert ask("txn", "abort", name).code == 2
    assert ask("txn", "abort").code == 2
    assert ask("txn", "abort", name, "--hanging").code == 2
    assert ask("txn", "abort", "nobody", "--yes").code == 3
    fenced = json.loads(ask("txn", "abort", name, "--yes", "--json").out)
    assert fenced == [{"transactional_id": name, "result": "fenced"}]
    assert producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
    assert committed_values(client, topic) == []


def test_a_hanging_transaction_is_found_and_aborted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress_ends: list[str]
) -> None:
    """The broker runs without verification, which otherwise prevents hanging transactions."""
    settings = {"transaction.partition.verification.enable": False}
    with (
        BrokerProcess(tmp_path, settings) as broker,
        RawClient(broker.host, broker.port) as client,
    ):
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", broker.bootstrap)
        client.create_topic("t", 2)
        client.create_topic("u")
        find_coordinator(client, "x")
        producer = RawProducer(client, "x")
        producer.init()
        assert producer.produce("t", b"kept") == 0
        find = ("txn", "list", "--hanging", "--idle", "0s")
        assert "No transaction hangs" in run(*find).error
        assert producer.produce("t", b"hangs", partition=1, version=CLASSIC_PRODUCE) == 0
        client.produce("t", values_batch(b"behind"), 1)
        (found,) = json.loads(run(*find, "--json").out)
        assert (found["topic"], found["partition"], found["start_offset"]) == ("t", 1, 0)
        assert found["producer_id"] == producer.producer_id
        assert "START OFFSET" in run(*find).out
        progress_ends.clear()
        assert json.loads(run(*find, "--topic", "u", "--json").out) == []
        assert progress_ends == ["partitions checked: 1 of 1"]
        # By default a transaction must be idle for longer than the maximum timeout.
        assert "No transaction hangs" in run("txn", "list", "--hanging").error
        assert committed_values(client, "t", 1) == []
        assert run("txn", "abort", "--hanging", "--idle", "0s").code == 2
        sick = json.loads(run("doctor", "--only", "cluster", "--json").out)
        assert sick["healthy"], "it is not idle for long enough"
        monkeypatch.setattr("millstream.cli.doctor.cluster_check._IDLE_MS", 0)
        sick = json.loads(run("doctor", "--only", "cluster", "--json").out)
        (hanging,) = [row for row in sick["checks"] if row["check"] == "transactions"]
        assert (hanging["state"], hanging["found"]) == ("unhealthy", "1 hanging: t-1")
        aborted = run("txn", "abort", "--hanging", "--idle", "0s", "--yes", "--json")
        assert [row["result"] for row in json.loads(aborted.out)] == ["aborted"]
        assert progress_ends[-1] == "transactions aborted: 1 of 1"
        assert committed_values(client, "t", 1) == [b"behind"]
        assert "No transaction hangs" in run(*find).error
        assert producer.end(commit=True) == 0
        wait_until(lambda: committed_values(client, "t") == [b"kept"], "the commit's marker")


def test_a_wrong_security_setting_is_named(ask: Run) -> None:
    rejected = ask("txn", "list", "-X", "security.protocol=SASL_SSL")
    assert rejected.code == 2
    assert "sasl.mechanism must be one of PLAIN" in rejected.error


def test_an_unreachable_broker(run: Run) -> None:
    refused = run("txn", "list", "-b", "127.0.0.1:1")
    assert refused.code == 4
    assert "no response from 127.0.0.1:1" in refused.error


def test_describe_says_that_a_prepared_transaction_stays_open(
    ask: Run, client: RawClient, producer: RawProducer
) -> None:
    request = InitProducerIdRequest(
        transactional_id=producer.transactional_id,
        transaction_timeout_ms=1,
        enable_2pc=True,
        keep_prepared_txn=True,
    )
    assert client.call(request).error_code == 0
    shown = ask("txn", "describe", producer.transactional_id)
    assert "stays open until it is ended" in shown.out
    assert ask("txn", "abort", "--yes", producer.transactional_id).code == 0
    assert "Ongoing" not in ask("txn", "describe", producer.transactional_id).out
