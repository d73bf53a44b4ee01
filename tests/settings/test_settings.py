"""Every setting has an effect, also at run time if it may change then.

The settings are those of the tables that brokers use. A setting without a scenario fails here, and
so does a setting without an effect.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.broker.config.broker_config import definitions as broker_definitions
from millstream.model.client_metrics_config import definitions as client_metrics_definitions
from millstream.model.config import definitions as topic_definitions
from millstream.model.group_config import definitions as group_definitions
from millstream.model.sentinel import NO_LEADER
from settings import (  # noqa: F401 -- they add themselves
    authorization_effect,
    connection_effect,
    group_effect,
    log_effect,
    login_effect,
    place_effect,
    quota_effect,
    replica_effect,
    tls_effect,
    topic_effect,
)
from settings.effect import EFFECTS, effect_of, runs_of
from settings.topic_effect import state, without_in_sync_replica
from settings.world import BROKER, Given, World

DEFINITIONS = {
    "broker": broker_definitions,
    "topic": topic_definitions,
    "group": group_definitions,
    "client metrics": client_metrics_definitions,
}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_every_setting_has_a_scenario(kind: str) -> None:
    assert set(EFFECTS[kind]) == set(DEFINITIONS[kind])


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in DEFINITIONS.items() for name in names]
)
def test_a_setting_has_an_effect(kind: str, name: str, tmp_path: Path) -> None:
    effect = effect_of(kind, name)
    observed = {}
    for run, given in runs_of(kind, name).items():
        folder = tmp_path / run
        folder.mkdir()
        observed[run] = effect.observe(given, folder)
    first, second = effect.values
    assert observed["first"] != observed["second"], (
        f"{name} = {first} and {second} have the same effect: {observed['first']}"
    )
    for run in observed.keys() & {"changed", "restarted"}:
        assert observed[run] == observed["second"], (
            f"{name}, {run} from {first} to {second} at run time: {observed[run]} instead of"
            f" {observed['second']}"
        )


def test_a_partition_that_is_offline_gets_a_leader_once_unclean_elections_are_allowed() -> None:
    async def scenario(world: World) -> None:
        await without_in_sync_replica(world)
        await asyncio.sleep(5)
        assert state(world).leader == NO_LEADER
        await world.change(BROKER, "", {"unclean.leader.election.enable": "true"})
        await world.until(lambda: state(world).leader == 3, "a leader")

    World(Given()).run(scenario)
