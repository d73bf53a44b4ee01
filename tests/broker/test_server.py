"""The broker as a process: start, shutdown, kill, settings changed at run time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from harness.in_process.log_home import UnsyncedDisk
from harness.process.broker_process import BrokerProcess, free_port, wait_until
from harness.raw.raw_client import RawClient, values_batch
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.lifecycle.environment import Environment
from millstream.broker.server import Server
from millstream.env.clock import SystemClock
from millstream.env.network import SystemNetwork
from millstream.metadata.store.memory import MemoryStore
from millstream.model.error import ErrorCode
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest


def client(broker: BrokerProcess) -> RawClient:
    return RawClient(broker.host, broker.port)


def leader_epoch(raw: RawClient, topic: str) -> int:
    response = raw.call(MetadataRequest(topics=[MetadataRequest.Topic(name=topic)]))
    epoch: int = response.topics[0].partitions[0].leader_epoch
    return epoch


def epoch_end(raw: RawClient, topic: str, epoch: int) -> tuple[int, int]:
    wanted = OffsetForLeaderEpochRequest.Topic.Partition(partition=0, leader_epoch=epoch)
    response = raw.call(
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderEpochRequest.Topic(topic=topic, partitions=[wanted])]
        )
    )
    row = response.topics[0].partitions[0]
    return row.leader_epoch, row.end_offset


def test_a_clean_stop_keeps_the_epoch_and_a_kill_raises_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with client(broker) as raw:
            raw.create_topic("kept")
            raw.create_topic("empty")
            raw.produce("kept", values_batch(b"a", b"b"))
            assert leader_epoch(raw, "kept") == 0
        broker.stop()
        broker.start()
        with client(broker) as raw:
            assert leader_epoch(raw, "kept") == 0
            raw.produce("kept", values_batch(b"c"))
        broker.kill()
        broker.start()
        with client(broker) as raw:
            assert leader_epoch(raw, "kept") == 1
            assert leader_epoch(raw, "empty") == 0
            assert [record.value for record in raw.read_all("kept")] == [b"a", b"b", b"c"]
            raw.produce("kept", values_batch(b"d"))
            assert epoch_end(raw, "kept", 0) == (0, 3)
            assert epoch_end(raw, "kept", 1) == (1, 4)


def test_a_broker_does_slow_work_before_it_joins_its_cluster(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        store = MemoryStore(SystemClock()).connect()
        environment = Environment(
            SystemClock(), UnsyncedDisk(), SystemNetwork(), Random(1), store, has_threads=False
        )
        flags = {"log.dir": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
        config = BrokerConfig.load(flags={**flags, "node.id": "1", "http.listen": ""})
        server = Server(config, environment)
        bound: list[dict[str, int]] = []
        server.before_joining = lambda: bound.append(dict(server.ports))
        await server.start()
        try:
            assert bound == [{}]
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_acknowledgements_follow_a_flush_if_configured(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"log.flush.before.ack": True}) as broker, client(broker) as raw:
        raw.create_topic("synced")
        for number in range(20):
            row = raw.produce("synced", values_batch(b"%d" % number), acks=1 if number % 2 else -1)
            assert (row.error_code, row.base_offset) == (0, number)
        assert broker.metric("millstream_log_flushes_total") == 0
        assert [record.offset for record in raw.read_all("synced")] == list(range(20))
        raw.close()
        broker.stop()
        checkpoint = (broker.data / "recovery-point-offset-checkpoint").read_text()
        assert "synced 0 20" in checkpoint


def test_flush_messages_is_an_fsync_before_the_ack_that_reaches_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, client(broker) as raw:
        raw.create_topic("each", configs={"flush.messages": 1})
        raw.create_topic("third", configs={"flush.messages": 3})
        for topic in ("each", "third"):
            for number in range(8):
                row = raw.produce(topic, values_batch(b"%d" % number), acks=1)
                assert (row.error_code, row.base_offset) == (0, number)
            assert len(raw.read_all(topic)) == 8


def alter_broker(raw: RawClient, node: str, name: str, value: str) -> ErrorCode:
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=4,
        resource_name=node,
        configs=[
            IncrementalAlterConfigsRequest.Resource.Config(
                name=name, config_operation=0, value=value
            )
        ],
    )
    response = raw.call(IncrementalAlterConfigsRequest(resources=[resource]))
    return ErrorCode(response.responses[0].error_code)


def test_settings_changed_at_run_time_hold_at_once_and_after_a_restart(tmp_path: Path) -> None:
    too_large = values_batch(b"x" * 3000)
    with BrokerProcess(tmp_path) as broker:
        with client(broker) as raw:
            raw.create_topic("sized")
            assert raw.produce("sized", too_large).error_code == ErrorCode.NONE
            assert alter_broker(raw, "1", "log.segment.bytes", "much") == ErrorCode.INVALID_REQUEST
            assert alter_broker(raw, "1", "node.id", "7") == ErrorCode.INVALID_REQUEST
            assert alter_broker(raw, "7", "message.max.bytes", "1") == ErrorCode.INVALID_REQUEST
            assert alter_broker(raw, "", "message.max.bytes", "2000") == ErrorCode.NONE
            assert raw.produce("sized", too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE
        broker.stop()
        broker.start()
        with client(broker) as raw:
            assert raw.produce("sized", too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert alter_broker(raw, "1", "message.max.bytes", "4000") == ErrorCode.NONE
            assert raw.produce("sized", too_large).error_code == ErrorCode.NONE


def test_a_topic_deleted_while_files_were_copied_back_is_not_adopted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with client(broker) as raw:
            raw.create_topic("phoenix")
            raw.produce("phoenix", values_batch(b"old"))
        broker.stop()
        with sqlite3.connect(broker.data / "metadata.db") as database:
            database.execute("DELETE FROM kv WHERE key LIKE 'topics/%'")
            database.execute("DELETE FROM kv WHERE key LIKE 'partitions/%'")
        database.close()
        broker.start()
        with client(broker) as raw:
            raw.create_topic("phoenix")
            assert raw.read_all("phoenix") == []
            raw.produce("phoenix", values_batch(b"new"))
            assert [record.value for record in raw.read_all("phoenix")] == [b"new"]
        wait_until(
            lambda: not list(broker.data.glob("*-delete")), "removal of the old topic's files"
        )


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = str(Path(sys.executable).with_name("millstream"))
    return subprocess.run(
        [command, "serve", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_data_folder_in_use_is_rejected(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        second = serve(
            "--data", str(broker.data), "--listen", f"127.0.0.1:{free_port()}", "--http", ""
        )
        assert second.returncode != 0
        assert "in use" in second.stderr
        assert "Traceback" not in second.stderr
        with client(broker) as raw:
            raw.create_topic("unharmed")


def test_an_address_in_use_is_rejected_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        data = tmp_path / "second"
        arguments = ("--data", str(data), "--http", "")
        taken = serve("--listen", broker.bootstrap, *arguments)
        assert taken.returncode != 0
        assert str(broker.port) in taken.stderr
        assert "Traceback" not in taken.stderr
        again = serve("--listen", broker.bootstrap, *arguments)
        assert "in use by another process" not in again.stderr


def test_a_folder_of_another_node_is_rejected(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.stop()
        other = serve("--data", str(broker.data), "--listen", "127.0.0.1:0", "--set", "node.id=2")
        assert other.returncode != 0
        assert "node.id" in other.stderr
        broker.start()


def test_two_listeners_tell_each_client_its_own_addresses(tmp_path: Path) -> None:
    inside, outside = free_port(), free_port()
    settings = {
        "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "advertised.listeners": f"OUTSIDE://broker.example:19094,INSIDE://127.0.0.1:{inside}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    }
    config = tmp_path / "millstream.toml"
    config.write_text("".join(f"{name} = {json.dumps(text)}\n" for name, text in settings.items()))
    http = free_port()
    command = str(Path(sys.executable).with_name("millstream"))
    data = str(tmp_path / "data")
    process = subprocess.Popen(
        [command, "serve", "--config", str(config), "--data", data, "--http", f"127.0.0.1:{http}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        advertised = {}
        for name, port in (("inside", inside), ("outside", outside)):
            wait_until(lambda port=port: _responses(port), f"port {port}")
            with RawClient("127.0.0.1", port) as raw:
                broker = raw.call(MetadataRequest(topics=[])).brokers[0]
                advertised[name] = (broker.host, broker.port)
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert advertised == {"inside": ("127.0.0.1", inside), "outside": ("broker.example", 19094)}


def _responses(port: int) -> bool:
    try:
        RawClient("127.0.0.1", port).close()
    except OSError:
        return False
    return True


def test_creation_is_durable_when_the_response_is_sent(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with client(broker) as raw:
            topics = [
                CreateTopicsRequest.Topic(
                    name=f"durable-{number}", num_partitions=1, replication_factor=1
                )
                for number in range(50)
            ]
            response = raw.call(CreateTopicsRequest(topics=topics))
            assert {row.error_code for row in response.topics} == {0}
        broker.kill()
        broker.start()
        with client(broker) as raw:
            names = {row.name for row in raw.call(MetadataRequest(topics=None)).topics}
    assert names == {f"durable-{number}" for number in range(50)}


@pytest.mark.parametrize("setting", ["log.segment.byte=5", "log.segment.bytes=five", "nonsense"])
def test_a_wrong_setting_stops_the_start_with_a_sentence(tmp_path: Path, setting: str) -> None:
    refused = serve("--data", str(tmp_path), "--set", setting)
    assert refused.returncode == 2
    assert setting.split("=")[0] in refused.stderr
    assert "Traceback" not in refused.stderr
