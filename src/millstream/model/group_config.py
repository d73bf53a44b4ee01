"""Group settings: names, types and defaults. A group's own values go over its broker's.

The synonyms are the broker's settings for groups that set nothing; the broker also bounds what a
group may set, which is not said here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from millstream.model.definition import ConfigType, Definition, Synonym, definitions_of, setting

_INT = ConfigType.INT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DynamicGroupConfig:
    """What a group may set for itself while brokers run. All of it is of the consumer protocol."""

    consumer_session_timeout_ms: int = setting(
        _INT,
        45_000,
        "Silence after which a member is fenced.",
        minimum=1,
        synonyms=(Synonym("group.consumer.session.timeout.ms"),),
    )
    consumer_heartbeat_interval_ms: int = setting(
        _INT,
        5000,
        "Time between heartbeats that members are told.",
        minimum=1,
        synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
    )
    consumer_assignment_interval_ms: int = setting(
        _INT,
        1000,
        "Least time between two assignments.",
        minimum=0,
        synonyms=(Synonym("group.consumer.assignment.interval.ms"),),
    )


#: Every group setting by name, in alphabetical order.
definitions: Final[Mapping[str, Definition]] = definitions_of(DynamicGroupConfig)
