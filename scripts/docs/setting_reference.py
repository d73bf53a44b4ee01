"""The reference pages of broker, topic and group settings, from their definitions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, Final

from scripts.docs.markdown import code, table

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.broker_config import definitions as broker_definitions
from millstream.model.config import definitions as topic_definitions
from millstream.model.definition import ConfigScope, Definition, definitions_of
from millstream.model.group_config import definitions as group_definitions
from millstream.model.sentinel import INT32_MAX, INT64_MAX

_UP: Final = re.compile(rf"(-?\d+) to (?:{INT64_MAX}|{INT32_MAX})$")
_ANY: Final = re.compile(
    rf" from -(?:{INT64_MAX + 1}|{INT32_MAX + 1}) to (?:{INT64_MAX}|{INT32_MAX})$"
)
_CHANGE: Final = {
    ConfigScope.READ_ONLY: "at start",
    ConfigScope.PER_BROKER: "per broker",
    ConfigScope.CLUSTER_WIDE: "cluster-wide",
}


def broker_page() -> str:
    """Return one table for each section of the broker's settings."""
    parts = []
    left = dict(broker_definitions)
    sections: list[tuple[str, Any]] = [("The broker", BrokerConfig)]
    sections += [
        (_title(field.default_factory), field.default_factory)
        for field in dataclasses.fields(BrokerConfig)
        if isinstance(field.default_factory, type)
    ]
    for title, section in sections:
        declared = [left.pop(name) for name in definitions_of(section)]
        parts.append(f"## {title}\n\n{_broker_table(declared)}")
    parts.append(f"## Defaults of topic settings\n\n{_broker_table(left.values())}")
    return "\n".join(parts)


def topic_page() -> str:
    """Return the table of topic settings."""
    return table(
        ("setting", "default", "allowed", "broker setting for its default", "meaning"),
        (
            (
                *_columns(each),
                ", ".join(code(synonym.name) for synonym in each.synonyms),
                each.doc,
            )
            for each in topic_definitions.values()
        ),
    )


def group_page() -> str:
    """Return the table of group settings."""
    return table(
        ("setting", "default", "allowed", "broker setting for its default", "meaning"),
        (
            (
                *_columns(each),
                ", ".join(code(synonym.name) for synonym in each.synonyms),
                each.doc,
            )
            for each in group_definitions.values()
        ),
    )


def _broker_table(definitions: Iterable[Definition]) -> str:
    return table(
        ("setting", "default", "allowed", "changed", "meaning"),
        ((*_columns(each), _CHANGE[each.scope], each.doc) for each in definitions),
    )


def _columns(definition: Definition) -> tuple[str, str, str]:
    return code(definition.name), _default(definition), _allowed(definition)


def _default(definition: Definition) -> str:
    if definition.default is None:
        return "not set"
    text = definition.format(definition.default) or ""
    if definition.default == 1.7976931348623157e308 or text in (str(INT64_MAX), str(INT32_MAX)):
        return "no limit"
    return code(text) or "empty"


def _allowed(definition: Definition) -> str:
    text = _UP.sub(r"\1 or more", _ANY.sub("", definition.allowed))
    return text.removeprefix("a whole number from ") if text.endswith("or more") else text


def _title(section: Any) -> str:
    """Return the first sentence of the section's docstring."""
    return str(section.__doc__).partition(".")[0]
