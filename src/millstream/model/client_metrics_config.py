"""Settings of a subscription to client metrics (KIP-714): names, types and defaults.

Limits that Kafka reports with a different error than a wrong type are not here: see
`broker/telemetry/subscription.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from millstream.model.definition import ConfigType, Definition, definitions_of, setting

INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """One subscription. Clients that match it push the metrics it names."""

    interval_ms: int = setting(
        ConfigType.INT, INTERVAL_MS_DEFAULT, "Time between two pushes of a client."
    )
    match: tuple[str, ...] = setting(
        ConfigType.LIST,
        (),
        "Which clients push, as attribute=pattern; all patterns must match. Empty for all clients.",
    )
    metrics: tuple[str, ...] = setting(
        ConfigType.LIST, (), "Prefixes of the names of metrics; * for all of them."
    )


#: Every setting of a subscription by name, in alphabetical order.
definitions: Final[Mapping[str, Definition]] = definitions_of(ClientMetricsConfig)
