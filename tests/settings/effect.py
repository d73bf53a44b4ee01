"""The effects of settings: for each setting two values, and a scenario that distinguishes them.

A scenario is a coroutine that gets a `World` and returns its observation. The observation must
differ between the two values. If the setting may change at run time, the observation after a change
to the second value must equal that of the second value from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from millstream.broker.config.broker_config import definitions as broker_definitions
from millstream.model.config import definitions as topic_definitions
from millstream.model.definition import ConfigScope
from settings.world import Given, RealWorld, World

Scenario: TypeAlias = Callable[[Any], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Effect:
    scenario: Scenario
    #: The two values of the setting.
    values: tuple[str, str]
    #: Whether the effect needs real sockets, files and threads.
    is_real: bool = False

    def observe(self, given: Given, folder: Path) -> object:
        world = RealWorld(given, folder) if self.is_real else World(given)
        return world.run(self.scenario)


#: Scenarios by the name of the setting.
BROKER_EFFECTS: dict[str, Effect] = {}
TOPIC_EFFECTS: dict[str, Effect] = {}
GROUP_EFFECTS: dict[str, Effect] = {}
CLIENT_METRICS_EFFECTS: dict[str, Effect] = {}


EFFECTS = {
    "broker": BROKER_EFFECTS,
    "topic": TOPIC_EFFECTS,
    "group": GROUP_EFFECTS,
    "client metrics": CLIENT_METRICS_EFFECTS,
}


def _add(table: dict[str, Effect], name: str, effect: Effect) -> None:
    assert name not in table, f"{name} has an effect already"
    table[name] = effect


def broker_effect(
    name: str, first: object, second: object, *, real: bool = False
) -> Callable[[Scenario], Scenario]:
    """Register the scenario of a broker setting."""

    def add(scenario: Scenario) -> Scenario:
        _add(BROKER_EFFECTS, name, Effect(scenario, (str(first), str(second)), real))
        return scenario

    return add


def topic_effect(
    name: str, first: object, second: object, *, real: bool = False
) -> Callable[[Scenario], Scenario]:
    """Register the scenario of a topic setting and of the broker settings that are its defaults.
    The values are converted for defaults in other units."""

    def add(scenario: Scenario) -> Scenario:
        _add(TOPIC_EFFECTS, name, Effect(scenario, (str(first), str(second)), real))
        for synonym in topic_definitions[name].synonyms:
            values = [
                str(each // synonym.factor)
                if isinstance(each, int) and synonym.factor != 1
                else each
                for each in (first, second)
            ]
            effect = Effect(scenario, (str(values[0]), str(values[1])), real)
            _add(BROKER_EFFECTS, synonym.name, effect)
        return scenario

    return add


#: Settings that cannot be set at the start.
ONLY_AT_RUN_TIME = ("decommissioned.brokers",)


def runs_of(kind: str, name: str) -> Mapping[str, Given]:
    """Return how a setting gets its values: "first", "second" and, if it may change at run time,
    "changed" from the first to the second, and "restarted" after that."""
    first, second = effect_of(kind, name).values
    if kind == "topic":
        return {
            "first": Given(topic={name: first}),
            "second": Given(topic={name: second}),
            "changed": Given(topic={name: first}, topic_change={name: second}),
        }
    if kind == "group":
        return {
            "first": Given(group_change={name: first}),
            "second": Given(group_change={name: second}),
        }
    if kind == "client metrics":
        return {
            "first": Given(subscription={name: first}),
            "second": Given(subscription={name: second}),
        }
    if name in ONLY_AT_RUN_TIME:
        return {
            "first": Given(broker_change={name: first}),
            "second": Given(broker_change={name: second}),
        }
    runs = {"first": Given(broker={name: first}), "second": Given(broker={name: second})}
    scope = broker_definitions[name].scope
    if scope is ConfigScope.CLUSTER_WIDE:
        runs["changed"] = Given(broker={name: first}, broker_change={name: second})
    elif scope is ConfigScope.PER_BROKER:
        runs["changed"] = Given(broker={name: first}, own_change={name: second})
    if "changed" in runs:
        runs["restarted"] = replace(runs["changed"], restarts=True)
    return runs


def effect_of(kind: str, name: str) -> Effect:
    return EFFECTS[kind][name]
