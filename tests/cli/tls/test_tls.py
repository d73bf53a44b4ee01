"""`millstream tls init`: the files, the settings that it prints, and a second call."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from cli.conftest import Run
from harness.process.tls_process import TlsBroker, TlsHome, exchange


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_settings_that_it_prints_work(run: Run, tmp_path: Path) -> None:
    done = run("tls", "init", str(tmp_path / "tls"), "--client", "alice", "--json")
    assert done.code == 0, done
    report = json.loads(done.out)
    assert report["clients"][0]["principal"] == "User:CN=alice,O=Millstream"
    home = TlsHome.__new__(TlsHome)
    home.folder = tmp_path / "tls"
    with TlsBroker(tmp_path, report["serve"], home) as broker:
        assert exchange(broker.tls_port, home.context("alice")) == "ok"
        assert exchange(broker.tls_port, home.context()) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        assert home.properties("alice") == report["clients"][0]["properties"]


def test_it_may_be_repeated(run: Run, tmp_path: Path) -> None:
    assert run("tls", "init", str(tmp_path / "tls")).code == 0
    first = contents(tmp_path / "tls")
    assert {"ca.pem", "ca.key", "broker.pem"} <= first.keys()
    done = run("tls", "init", str(tmp_path / "tls"), "--client", "bob", "--host", "b.example")
    assert done.code == 0
    assert "exists: --host changes nothing without --force" in done.error
    assert f"made {tmp_path}/tls/bob.pem" in done.out
    second = contents(tmp_path / "tls")
    assert first.items() <= second.items()
    again = run("tls", "init", str(tmp_path / "tls"), "--client", "bob")
    assert "everything exists already" in again.out
    forced = run("tls", "init", str(tmp_path / "tls"), "--force", "--host", "b.example")
    assert forced.code == 0
    third = contents(tmp_path / "tls")
    assert third["broker.pem"] != second["broker.pem"]
    assert third["ca.pem"] == second["ca.pem"]
    assert stat.S_IMODE((tmp_path / "tls/ca.key").stat().st_mode) == 0o600


def test_the_text_names_the_settings(run: Run, tmp_path: Path) -> None:
    out = run("tls", "init", str(tmp_path / "tls"), "--client", "alice").out
    assert f"--set ssl.keystore.location={tmp_path}/tls/broker.pem" in out
    assert "--set ssl.client.auth=required" in out
    assert "security.protocol=SSL" in out
    assert f"ssl.certificate.location={tmp_path}/tls/alice.crt" in out


def test_bad_arguments(run: Run, tmp_path: Path) -> None:
    for name in ("ca", "broker", "../x", ""):
        done = run("tls", "init", str(tmp_path / "tls"), "--client", name)
        assert done.code == 2, done
    (tmp_path / "file").write_text("")
    done = run("tls", "init", str(tmp_path / "file"))
    assert done.code == 1
    assert "cannot write to" in done.error
