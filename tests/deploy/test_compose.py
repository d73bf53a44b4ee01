"""The compose files: valid, safe, and with settings that the broker accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.served_settings import served_settings
from harness.tool.deploy_tool import go_tool, run

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted((DEPLOY / "compose").glob("*.yml"))
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def services(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["services"]
    return found


def brokers(file: Path) -> dict[str, dict[str, Any]]:
    return {name: row for name, row in services(file).items() if name.startswith("broker")}


def test_there_is_a_file_for_one_broker_and_for_three() -> None:
    assert {file.stem: len(brokers(file)) for file in FILES} == {
        "one-broker": 1,
        "three-brokers": 3,
    }


@each_file
def test_a_file_conforms_to_the_compose_specification(file: Path) -> None:
    run(go_tool("compose-spec"), file)


@each_file
def test_the_broker_accepts_its_settings(file: Path) -> None:
    for name, service in brokers(file).items():
        given = service["environment"]
        settings = served_settings(given)
        for variable, value in given.items():
            setting = variable.removeprefix("MILLSTREAM_").lower().replace("_", ".")
            assert settings[setting] == value
        internal, external = str(settings["advertised.listeners"]).split(",")
        assert internal == f"CONTAINER://{name}:19092"
        published = external.removeprefix("HOST://")
        assert f"{published}:{published.rsplit(':', 1)[1]}" in service["ports"]


@each_file
def test_containers_are_locked_down_and_have_time_to_stop(file: Path) -> None:
    for service in services(file).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for service in brokers(file).values():
        assert int(service["stop_grace_period"].removesuffix("s")) >= 60
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@each_file
def test_every_volume_and_the_container_file_exist(file: Path) -> None:
    document = yaml.safe_load(file.read_text())
    mounted = [
        volume.split(":")[0]
        for service in document["services"].values()
        for volume in service["volumes"]
    ]
    assert sorted(mounted) == sorted(document["volumes"])
    for service in brokers(file).values():
        context = (file.parent / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file()


def test_three_brokers_have_ids_of_their_own_and_share_one_store() -> None:
    (file,) = [file for file in FILES if file.stem == "three-brokers"]
    settings = [served_settings(service["environment"]) for service in brokers(file).values()]
    assert [row["node.id"] for row in settings] == ["1", "2", "3"]
    (store,) = {row["metadata.store"] for row in settings}
    members = str(store).removeprefix("etcd://").split("/")[0].split(",")
    assert {member.removesuffix(":2379") for member in members} <= set(services(file))
    # Settings of etcd's members are variables, of which each must name the same cluster.
    names = [name for name in services(file) if name.startswith("etcd")]
    for name in names:
        variables = services(file)[name]["environment"]
        assert variables["ETCD_NAME"] == name
        listed = dict(row.split("=") for row in variables["ETCD_INITIAL_CLUSTER"].split(","))
        assert sorted(listed) == sorted(names)
        assert listed[name] == variables["ETCD_INITIAL_ADVERTISE_PEER_URLS"]
