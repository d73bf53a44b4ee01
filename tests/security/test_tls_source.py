"""Contexts that follow their files and settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.process.tls_process import HOSTS, TlsHome
from millstream.env.disk import SystemDisk
from millstream.security.tls_material import TlsError, TlsOptions
from millstream.security.tls_source import TlsSource


def made(home: TlsHome) -> TlsSource:
    options = TlsOptions(
        keystore_location=str(home.folder / "broker.pem"), truststore_location=home.ca
    )
    return TlsSource("the listener SSL", options, SystemDisk())


def test_files_that_do_not_change_keep_the_contexts(tmp_path: Path) -> None:
    source = made(TlsHome(tmp_path))
    server = source.server
    source.refresh()
    assert source.server is server
    assert (source.reloads, source.failures) == (0, 0)


def test_a_new_certificate(tmp_path: Path) -> None:
    home = TlsHome(tmp_path)
    source = made(home)
    before = source.expires_at, source.server, source.client
    home.authority.issue("broker", hosts=HOSTS, days=30)
    source.refresh()
    assert (source.expires_at - before[0]).days == 28
    assert source.server is not before[1]
    assert source.client is not before[2]
    assert source.reloads == 1


def test_a_bad_file_is_reported_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = TlsHome(tmp_path)
    source = made(home)
    server = source.server
    file = tmp_path / "broker.pem"
    good = file.read_text()
    file.write_text("nothing")
    for _ in range(3):
        source.refresh()
    assert source.server is server
    assert (source.reloads, source.failures) == (0, 1)
    assert caplog.text.count("keeps its present keys and certificates") == 1
    file.write_text(good)
    source.refresh()
    file.unlink()
    source.refresh()
    assert (source.reloads, source.failures) == (0, 2)


def test_settings_that_change(tmp_path: Path) -> None:
    home, other = TlsHome(tmp_path / "a"), TlsHome(tmp_path / "b")
    source = made(home)
    changed = dataclasses.replace(
        source.options, keystore_location=str(other.folder / "broker.pem")
    )
    source.configure(changed)
    assert source.options == changed
    source.configure(dataclasses.replace(changed, keystore_location="missing"))
    assert source.options == changed
    assert (source.reloads, source.failures) == (1, 1)


def test_the_first_keys_must_be_good(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match="cannot be read"):
        TlsSource("x", TlsOptions(keystore_location=str(tmp_path / "missing")), SystemDisk())
