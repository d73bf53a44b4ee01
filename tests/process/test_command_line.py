"""The command lines of brokers and etcd members."""

from __future__ import annotations

from pathlib import Path

from millstream.process.broker_server import BrokerEndpoints, BrokerServer
from millstream.process.etcd_server import (
    NO_FSYNC,
    EtcdEndpoints,
    EtcdMember,
    join_members,
    store_address,
)


def test_a_broker_gets_its_settings_as_texts(tmp_path: Path) -> None:
    settings = {"node.id": 2, "auto.create.topics.enable": False}
    broker = BrokerServer("broker-2", tmp_path, BrokerEndpoints("127.0.0.1", 9092, 9644), settings)
    line = " ".join(broker.command())
    assert f"serve --data {tmp_path / 'broker-2'} --listen 127.0.0.1:9092" in line
    assert "--http 127.0.0.1:9644" in line
    assert "--set node.id=2 --set auto.create.topics.enable=false" in line
    assert broker.log_path == tmp_path / "broker-2.log"


def test_joined_members_know_each_other(tmp_path: Path) -> None:
    members = [
        EtcdMember(f"etcd-{number}", tmp_path, EtcdEndpoints("10.0.0.1", number, number + 10))
        for number in (1, 2)
    ]
    assert "--initial-cluster etcd-1=http://10.0.0.1:11 " in " ".join(members[0].command())
    join_members(members)
    both = "etcd-1=http://10.0.0.1:11,etcd-2=http://10.0.0.1:12"
    for member in members:
        assert f"--initial-cluster {both} " in " ".join(member.command())
    assert store_address(members, "p") == "etcd://10.0.0.1:1,10.0.0.1:2/p"
    members[0].scheme = "https"
    assert store_address(members) == "etcds://10.0.0.1:1,10.0.0.1:2/millstream"


def test_flags_come_last(tmp_path: Path) -> None:
    member = EtcdMember("etcd", tmp_path, EtcdEndpoints("127.0.0.1", 1, 2), NO_FSYNC)
    assert member.command()[-1] == "--unsafe-no-fsync"
