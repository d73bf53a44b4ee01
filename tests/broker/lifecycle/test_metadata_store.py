"""Which metadata store a broker uses, and the error if it is the wrong one or cannot be reached.

Real brokers on a real etcd.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess, ServerFailed, free_port, wait_until
from harness.process.etcd_process import EtcdCluster, require_etcd
from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.broker.lifecycle.metadata_store import etcd_options
from millstream.env.disk import SystemDisk
from millstream.log.directory.data_directory import CLEAN_MARKER

_prefixes = (f"brokers-{n}" for n in itertools.count())
#: As short as etcd's leases can be, so that tests are fast.
SESSION_MS = 2000


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    require_etcd()
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def broker(
    folder: Path,
    address: str,
    node_id: int = 1,
    data: Path | None = None,
    session_ms: int = SESSION_MS,
) -> BrokerProcess:
    folder.mkdir(exist_ok=True)
    settings = {
        "metadata.store": address,
        "node.id": node_id,
        "broker.session.timeout.ms": session_ms,
    }
    return BrokerProcess(folder, settings, data=data)


def refused(process: BrokerProcess) -> str:
    """Start a broker whose start fails; return its last sentence."""
    with pytest.raises(ServerFailed, match="ended"):
        process.start()
    assert process.exit_code == 1
    text = process.log_text()
    assert "Traceback" not in text, text
    line = text.splitlines()[-1]
    assert line.startswith("error: cannot start: "), text
    return line


def cluster_id(process: BrokerProcess) -> str:
    lines = (process.data / "meta.properties").read_text().splitlines()
    return next(line for line in lines if line.startswith("cluster.id="))


def test_brokers_of_one_etcd_are_one_cluster(etcd: EtcdCluster, tmp_path: Path) -> None:
    address = etcd.address(next(_prefixes))
    with broker(tmp_path / "1", address, 1) as one, broker(tmp_path / "2", address, 2) as two:
        assert cluster_id(one) == cluster_id(two)
        with broker(tmp_path / "3", etcd.address(next(_prefixes)), 3) as other:
            assert cluster_id(other) != cluster_id(one)
        two.stop()
        one.stop()


def test_a_second_broker_with_the_same_id_is_rejected(etcd: EtcdCluster, tmp_path: Path) -> None:
    address = etcd.address(next(_prefixes))
    with broker(tmp_path / "1", address) as first:
        assert (
            f"another broker with node.id 1 is registered at {first.bootstrap}: stop it, or give"
            " this one a node.id of its own"
        ) in refused(broker(tmp_path / "2", address))
        assert first.is_ready()
        # The start succeeds: the folder was not marked as the other broker's.
        with broker(tmp_path / "2", address, node_id=2) as second:
            second.stop()
        first.stop()
        assert "registering again" not in first.log_text()


def test_a_killed_broker_comes_back_when_its_lease_has_run_out(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    # Longer than a slow start.
    with broker(tmp_path / "1", etcd.address(next(_prefixes)), session_ms=8000) as process:
        process.kill()
        process.start()
        assert "waiting for its lease to expire" in process.log_text()
        process.stop()


def test_a_data_folder_of_another_cluster_is_rejected_and_stays_clean(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    here, there, nowhere = (etcd.address(next(_prefixes)) for _ in range(3))
    own = broker(tmp_path / "own", here)
    with own:
        own.stop()
    with broker(tmp_path / "other", there, node_id=2) as other:
        # Another cluster's store.
        message = refused(broker(tmp_path / "wrong", there, data=own.data))
        assert "meta.properties says cluster.id=" in message
        assert own.data.joinpath(CLEAN_MARKER).exists()
        # A store without a cluster: the folder's cluster is not created there.
        message = refused(broker(tmp_path / "wrong", nowhere, data=own.data))
        assert "has no cluster yet, but the data directory belongs to cluster" in message
        # Another broker of its own cluster.
        message = refused(broker(tmp_path / "wrong", here, node_id=7, data=own.data))
        assert "meta.properties says node.id=1" in message
        # The embedded store.
        message = refused(broker(tmp_path / "wrong", "sqlite", data=own.data))
        assert "the data directory belongs to cluster" in message
        assert own.data.joinpath(CLEAN_MARKER).exists()
        assert other.is_ready()
    with own:
        assert "recovered" not in own.log_text()
        own.stop()


def test_an_etcd_that_is_not_there_is_named(tmp_path: Path) -> None:
    port = free_port()
    message = refused(broker(tmp_path / "1", f"etcd://127.0.0.1:{port}"))
    assert f"no etcd responds at 127.0.0.1:{port}: " in message


def test_a_broker_outlives_an_etcd_that_is_away(tmp_path: Path) -> None:
    require_etcd()
    with EtcdCluster(tmp_path) as cluster, broker(tmp_path / "1", cluster.address()) as process:
        cluster.members[0].kill()
        wait_until(lambda: "lease was not renewed" in process.log_text(), "a missed renewal", 60)
        cluster.start(cluster.members[0])
        cluster.wait_until_healthy()
        command = [str(Path(sys.executable).with_name("millstream")), "topic", "create", "t"]
        command += ["-b", process.bootstrap, "--partitions", "200", "--timeout", "30"]
        subprocess.run(command, check=True, capture_output=True)
        process.stop()


def test_a_broker_of_a_cluster_waits_for_its_etcd_at_a_start(tmp_path: Path) -> None:
    require_etcd()
    with EtcdCluster(tmp_path) as cluster, broker(tmp_path / "1", cluster.address()) as process:
        process.kill()
        cluster.members[0].kill()
        process.start(wait=False)
        wait_until(lambda: "cannot join the cluster yet" in process.log_text(), "an attempt", 60)
        assert "no etcd responds at 127.0.0.1:" in process.log_text()
        cluster.start(cluster.members[0])
        process.wait_until_ready()
        process.stop()
        # After a signal it does not retry.
        cluster.members[0].kill()
        before = process.log_text().count("cannot join the cluster yet")
        process.start(wait=False)
        wait_until(
            lambda: process.log_text().count("cannot join the cluster yet") > before, "another", 60
        )
        process.stop()
        assert "shut down before the broker joined the cluster" in process.log_text()
        # It does not retry beyond its timeout.
        process.settings["initial.broker.registration.timeout.ms"] = 0
        assert "no etcd responds at 127.0.0.1:" in refused(process)
        assert process.data.joinpath(CLEAN_MARKER).exists()


def test_a_broker_of_a_cluster_waits_for_its_number_at_a_start(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    address = etcd.address(next(_prefixes))
    with broker(tmp_path / "1", address) as own:
        own.stop()
        with broker(tmp_path / "2", address) as other:
            own.start(wait=False)
            wait_until(lambda: "cannot join the cluster yet" in own.log_text(), "an attempt", 60)
            assert f"is registered at {other.bootstrap}" in own.log_text()
            other.stop()
        own.wait_until_ready()
        own.stop()


def test_settings_become_options(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("se cret\n")
    flags = {
        "metadata.store": "etcds://a,b:1/x",
        "metadata.etcd.username": "me",
        "metadata.etcd.password.file": str(password),
        "metadata.etcd.ca.file": "/ca",
        "metadata.etcd.certificate.file": "/cert",
        "metadata.etcd.key.file": "/key",
    }
    options = etcd_options(BrokerConfig.load(flags=flags), SystemDisk())
    assert options.address.urls == ("https://a:2379", "https://b:1")
    assert (options.username, options.password) == ("me", "se cret")
    assert (options.ca_file, options.certificate_file) == (Path("/ca"), Path("/cert"))
    assert options.key_file == Path("/key")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("metadata.etcd.username", "belong together"),
        ("metadata.etcd.password.file", "belong together"),
    ],
)
def test_half_a_login_is_rejected(name: str, expected: str) -> None:
    config = BrokerConfig.load(flags={"metadata.store": "etcd://a", name: "x"})
    with pytest.raises(ConfigError, match=expected):
        etcd_options(config, SystemDisk())


def test_a_missing_password_file_is_named() -> None:
    flags = {"metadata.etcd.username": "me", "metadata.etcd.password.file": "/nowhere"}
    config = BrokerConfig.load(flags={"metadata.store": "etcd://a", **flags})
    with pytest.raises(ConfigError, match="/nowhere"):
        etcd_options(config, SystemDisk())
