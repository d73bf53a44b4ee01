"""The effects of settings: for each setting two values, and a scenario that tells them apart.

A scenario is a coroutine that is given a `World` and returns what it observed. It must observe
something else with the second value than with the first, and, where the setting may be changed at
run time, the same with the second value from then on as with that value from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from millstream.broker.config.broker_config import definitions as broker_definitions
from millstream.model.config import definitions as topic_definitions
from millstream.model.definition import Scope
from settings.world import Given, RealWorld, World

Scenario: TypeAlias = Callable[[Any], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Effect:
    scenario: Scenario
    #: The two values of the setting.
    values: tuple[str, str]
    #: Whether it shows only on real sockets, files and threads.
    is_real: bool = False

    def observe(self, given: Given, folder: Path) -> object:
        world = RealWorld(given, folder) if self.is_real else World(given)
        return world.run(self.scenario)


#: By the name of the setting.
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
    """Say that a scenario shows the effect of a broker's setting."""

    def add(scenario: Scenario) -> Scenario:
        _add(BROKER_EFFECTS, name, Effect(scenario, (str(first), str(second)), real))
        return scenario

    return add


def topic_effect(
    name: str, first: object, second: object, *, real: bool = False
) -> Callable[[Scenario], Scenario]:
    """Say that a scenario shows the effect of a topic's setting, and of the broker's settings that
    are its defaults. Those in other units have the same value in them."""

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


#: Settings that a broker does not start with.
ONLY_AT_RUN_TIME = ("decommissioned.brokers",)


def runs_of(kind: str, name: str) -> Mapping[str, Given]:
    """How a setting is given its values: "first" and "second" and, if it can be, "changed" from the
    first to the second at run time, and "restarted" after that."""
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
    if scope is Scope.CLUSTER_WIDE:
        runs["changed"] = Given(broker={name: first}, broker_change={name: second})
    elif scope is Scope.PER_BROKER:
        runs["changed"] = Given(broker={name: first}, own_change={name: second})
    if "changed" in runs:
        runs["restarted"] = replace(runs["changed"], restarts=True)
    return runs


def effect_of(kind: str, name: str) -> Effect:
    return EFFECTS[kind][name]
