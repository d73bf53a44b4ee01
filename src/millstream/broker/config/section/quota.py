"""Settings for quotas: the windows over which rates are measured, and limits on new connections."""

from __future__ import annotations

import dataclasses

from millstream.model.definition import ConfigScope, ConfigType, setting
from millstream.model.sentinel import INT32_MAX

_INT = ConfigType.INT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSection:
    """Quotas. `config.quota`."""

    quota_window_num: int = setting(
        _INT, 11, "Number of samples over which the rates of clients are measured.", minimum=1
    )
    quota_window_size_seconds: int = setting(
        _INT, 1, "Length of a sample of the rates of clients.", minimum=1
    )
    controller_quota_window_num: int = setting(
        _INT,
        11,
        "Number of samples whose partitions a client may create or delete in one burst.",
        minimum=1,
    )
    controller_quota_window_size_seconds: int = setting(
        _INT, 1, "Length of a sample of the rate of created and deleted partitions.", minimum=1
    )
    max_connection_creation_rate: int = setting(
        _INT,
        INT32_MAX,
        "New connections per second over all listeners, or of one listener; further ones wait.",
        minimum=1,
        scope=ConfigScope.CLUSTER_WIDE,
        is_per_listener=True,
    )
    metrics_quota_labels_max: int = setting(
        _INT, 1000, "Users and client ids with a quota that have metrics of their own.", minimum=0
    )
