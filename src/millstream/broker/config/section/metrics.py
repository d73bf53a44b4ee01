"""Settings for metrics: bounds on labels, consumer lag, and metrics that clients push."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigType, setting

_INT = ConfigType.INT
_MIB: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSection:
    """Metrics. `config.metrics`."""

    metrics_topic_labels_max: int = setting(
        _INT, 1000, "Topics with metrics of their own; the others are summed up.", minimum=0
    )
    metrics_partition_labels_max: int = setting(
        _INT, 1000, "Partitions with metrics of their own; the others are summed up.", minimum=0
    )
    metrics_client_labels_max: int = setting(
        _INT, 10_000, "Maximum number of series pushed by clients, over all clients.", minimum=0
    )
    telemetry_max_bytes: int = setting(
        _INT, _MIB, "Largest metrics payload that a client may push.", minimum=1
    )
    metrics_lag_interval_ms: int = setting(
        _INT, 15_000, "Time between measurements of consumer lag; 0 is never.", minimum=0
    )
    metrics_group_labels_max: int = setting(
        _INT, 1000, "Groups with metrics of their own; the others are summed up.", minimum=0
    )
    metrics_group_partition_labels_max: int = setting(
        _INT, 2000, "Partitions, over all groups, with lag metrics of their own.", minimum=0
    )
