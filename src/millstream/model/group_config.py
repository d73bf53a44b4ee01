"""Group settings: names, types and defaults. A group's own values override its broker's values.

The synonyms are the broker settings that apply to groups without a value of their own. The limits
that the broker sets for groups' values are not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from millstream.model.definition import ConfigType, Definition, Synonym, definitions_of, setting

_INT = ConfigType.INT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DynamicGroupConfig:
    """Settings that a group may change while brokers run. All are for the consumer protocol."""

    consumer_session_timeout_ms: int = setting(
        _INT,
        45_000,
        "Time without a heartbeat after which a member is fenced.",
        minimum=1,
        synonyms=(Synonym("group.consumer.session.timeout.ms"),),
    )
    consumer_heartbeat_interval_ms: int = setting(
        _INT,
        5000,
        "Time between heartbeats that the coordinator requests from members.",
        minimum=1,
        synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
    )
    consumer_assignment_interval_ms: int = setting(
        _INT,
        1000,
        "Minimum time between two assignments.",
        minimum=0,
        synonyms=(Synonym("group.consumer.assignment.interval.ms"),),
    )


#: Every group setting by name, in alphabetical order.
definitions: Final[Mapping[str, Definition]] = definitions_of(DynamicGroupConfig)
