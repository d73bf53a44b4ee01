"""Settings for Fetch requests of consumers and followers."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigType, setting

_STRING, _INT = ConfigType.STRING, ConfigType.INT
_MIB: Final = 1024 * 1024

#: Selectors that let a consumer read from a follower. The long name is Kafka's class.
RACK_AWARE_SELECTOR: Final = "rack"
_RACK_AWARE_SELECTORS: Final = (
    RACK_AWARE_SELECTOR,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
)


def _check_selector(value: str | None) -> None:
    if value and value not in _RACK_AWARE_SELECTORS:
        raise ValueError(f"nothing, or {' or '.join(_RACK_AWARE_SELECTORS)}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FetchSection:
    """Fetch requests. `config.fetch`."""

    fetch_max_bytes: int = setting(
        _INT, 55 * _MIB, "Maximum size of the records in one Fetch response.", minimum=1024
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        _INT, 1000, "Maximum number of fetch sessions; 0 is none.", minimum=0
    )
    replica_selector_class: str | None = setting(
        _STRING,
        None,
        "If set to rack, a consumer that names its rack reads from an in-sync replica there.",
        check=_check_selector,
    )
