"""A broker whose etcd requires certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess, ServerFailed
from harness.process.etcd_process import EtcdCluster, require_etcd
from harness.process.tls_process import HOSTS, TlsHome
from harness.raw.raw_client import RawClient
from millstream.wire.messages.metadata import MetadataRequest


def test_a_broker_uses_an_etcd_with_tls(tmp_path: Path) -> None:
    require_etcd()
    tls = TlsHome(tmp_path / "tls")
    tls.authority.issue("etcd", hosts=HOSTS, days=2)
    tls.client("millstream")
    flags = ["--cert-file", f"{tls.folder}/etcd.crt", "--key-file", f"{tls.folder}/etcd.key"]
    flags += ["--trusted-ca-file", tls.ca, "--client-cert-auth"]
    etcd = EtcdCluster(tmp_path, flags=flags)
    for member in etcd.members:
        member.scheme = "https"
        member.start(wait=False)
    settings = {
        "metadata.store": etcd.address(),
        "metadata.etcd.ca.file": tls.ca,
        "initial.broker.registration.timeout.ms": 0,
    }
    own = {
        "metadata.etcd.certificate.file": f"{tls.folder}/millstream.crt",
        "metadata.etcd.key.file": f"{tls.folder}/millstream.key",
    }
    try:
        with BrokerProcess(tmp_path, {**settings, **own}) as broker:
            with RawClient(broker.host, broker.port) as client:
                client.create_topic("t", 1, None, 1)
            broker.kill()
            broker.start()
            with RawClient(broker.host, broker.port) as client:
                assert [row.name for row in client.call(MetadataRequest(topics=None)).topics] == [
                    "t"
                ]
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(ServerFailed, match="certificate"), BrokerProcess(other, settings):
            pass
    finally:
        etcd.kill()
