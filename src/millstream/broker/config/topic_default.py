"""The broker settings that are defaults of topic settings: `log.segment.bytes` for `segment.bytes`.

The definition of a topic setting lists its synonyms, highest precedence first, some in other units.
This module turns them into definitions of their own, and their values into a `TopicConfig`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from millstream.model.config import TopicConfig, definitions
from millstream.model.definition import ConfigScope, ConfigType, Definition


def synonym_definitions() -> dict[str, Definition]:
    """Return all such broker settings. Of several for one topic setting, the last has its
    default."""
    found: dict[str, Definition] = {}
    for topic_definition in definitions.values():
        last = len(topic_definition.synonyms) - 1
        for position, (name, factor) in enumerate(topic_definition.synonyms):
            default = topic_definition.default if position == last else None
            found[name] = dataclasses.replace(
                topic_definition,
                name=name,
                kind=topic_definition.kind if factor == 1 else ConfigType.INT,
                default=default if factor == 1 or default is None else default // factor,
                doc=f"Default of {topic_definition.name}: {topic_definition.doc}",
                synonyms=(),
                scope=ConfigScope.READ_ONLY if position else ConfigScope.CLUSTER_WIDE,
            )
    return found


def synonym_names() -> dict[str, tuple[str, ...]]:
    """Return, by broker setting, the settings that DescribeConfigs shows together.

    The same setting in other units (`log.retention.ms`, `.minutes`, `.hours`) is shown with all
    units. A setting that falls back to another one (`log.flush.interval.ms`) is shown with it; the
    other one is shown alone."""
    found: dict[str, tuple[str, ...]] = {}
    for topic_definition in definitions.values():
        names = tuple(synonym.name for synonym in topic_definition.synonyms)
        is_one_setting = any(synonym.factor != 1 for synonym in topic_definition.synonyms)
        for name in names if is_one_setting else names[:1]:
            found[name] = names
    return found


def gather_topic_defaults(value: Callable[[str], Any]) -> TopicConfig:
    """Return the config of a topic without overrides, given the values of the broker settings."""
    gathered: dict[str, Any] = {}
    for topic_definition in definitions.values():
        for name, factor in topic_definition.synonyms:
            found = value(name)
            if found is not None:
                # Every negative number of hours is -1 ms.
                gathered[topic_definition.attribute] = (
                    found if factor == 1 else max(-1, found * factor)
                )
                break
    return TopicConfig(**gathered)
