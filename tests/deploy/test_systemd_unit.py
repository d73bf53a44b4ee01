"""The systemd unit, checked by systemd's own tools."""

from __future__ import annotations

import configparser
import shlex
import subprocess
from pathlib import Path

import pytest

from deploy.served_settings import served_settings
from harness.tool.deploy_tool import REPOSITORY, require_systemd, run
from millstream.broker.lifecycle import membership
from millstream.broker.server import CLOSE_S_MAX

FOLDER = REPOSITORY / "deploy" / "systemd"
UNIT = FOLDER / "millstream.service"
#: systemd-analyze's measure of what a service may do, from 0 (nothing) to 10; most services have 9.
EXPOSURE_MAX = "1.5"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a command that exists on this machine."""
    require_systemd()
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text().replace("/opt/millstream/bin/millstream", "/bin/true"))
    return file


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_systemd_accepts_the_unit(unit: Path) -> None:
    result = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_unit_is_hardened(unit: Path) -> None:
    threshold = str(int(float(EXPOSURE_MAX) * 10))
    run("systemd-analyze", "security", "--offline=yes", f"--threshold={threshold}", unit)


def test_the_unit_waits_for_the_notification_of_the_broker() -> None:
    """`tests/broker/lifecycle/test_systemd.py` has the notifications."""
    assert service()["Type"] == "notify"
    assert int(service()["WatchdogSec"]) >= 10


def test_the_user_can_be_created(tmp_path: Path) -> None:
    require_systemd()
    entries = (FOLDER / "sysusers.conf").read_text()
    for name in ("User", "Group"):
        assert f"u {service()[name]} " in entries
    assert service()["WorkingDirectory"] in entries
    run("systemd-sysusers", "--dry-run", FOLDER / "sysusers.conf")


def test_the_broker_accepts_the_settings_file(tmp_path: Path) -> None:
    command = shlex.split(service()["ExecStart"])
    assert command[1:] == ["serve", "--config", "/etc/millstream/broker.toml"]
    settings = served_settings({}, "--config", str(FOLDER / "broker.toml"))
    assert settings["log.dir"] == f"/var/lib/{service()['StateDirectory']}"
    # With the lines for a cluster.
    lines = (FOLDER / "broker.toml").read_text().splitlines()
    cluster = tmp_path / "broker.toml"
    cluster.write_text(
        "\n".join(line.removeprefix("# ") if " = " in line else line for line in lines)
    )
    settings = served_settings({}, "--config", str(cluster))
    assert settings["broker.rack"] == "zone-a"
    assert str(settings["metadata.store"]).startswith("etcd://")


def test_there_is_time_and_there_are_files_for_the_broker() -> None:
    settings = served_settings({})
    drain_s = int(settings["shutdown.drain.timeout.ms"] or 0) / 1000
    stop_s_max = membership._HAND_OVER_S_MAX + drain_s + CLOSE_S_MAX
    assert int(service()["TimeoutStopSec"]) > stop_s_max
    wanted = int(settings["log.open.files.max"] or 0) + int(settings["max.connections"] or 0)
    assert int(service()["LimitNOFILE"]) > wanted
