"""Every setting has an effect, also at run time where it may be changed then.

A setting that nobody has named a scenario for fails here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.config import definitions as broker_definitions
from millstream.model.config import definitions as topic_definitions
from millstream.model.group_config import definitions as group_definitions
from settings import connection_effect, group_effect, log_effect, topic_effect  # noqa: F401 -- they add themselves
from settings.effect import BROKER_EFFECTS, TOPIC_EFFECTS, effect_of, runs_of


def check(kind: str, name: str, folder: Path) -> None:
    effect = effect_of(kind, name)
    observed = {}
    for run, given in runs_of(kind, name).items():
        place = folder / run
        place.mkdir()
        observed[run] = effect.observe(given, place)
    first, second = effect.values
    assert observed["first"] != observed["second"], (
        f"{name} = {first} and {second} have the same effect: {observed['first']}"
    )
    if "changed" in observed:
        assert observed["changed"] == observed["second"], (
            f"{name}, changed from {first} to {second} at run time: {observed['changed']} instead"
            f" of {observed['second']}"
        )


def test_every_setting_is_walked() -> None:
    assert set(TOPIC_EFFECTS) == set(topic_definitions)


@pytest.mark.parametrize("name", topic_definitions)
def test_a_setting_of_topics(name: str, tmp_path: Path) -> None:
    check("topic", name, tmp_path)


@pytest.mark.parametrize("name", [n for n in broker_definitions if n in BROKER_EFFECTS])
def test_a_setting_of_brokers(name: str, tmp_path: Path) -> None:
    check("broker", name, tmp_path)


@pytest.mark.parametrize("name", group_definitions)
def test_a_setting_of_groups(name: str, tmp_path: Path) -> None:
    check("group", name, tmp_path)
