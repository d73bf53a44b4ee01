"""Settings for groups and committed offsets."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigScope, ConfigType, setting
from millstream.model.sentinel import INT32_MAX

_STRING, _INT, _SHORT = ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LONG, _LIST = ConfigType.LONG, ConfigType.LIST
_MIB: Final = 1024 * 1024

_SERVER_ASSIGNORS: Final = ("uniform", "range")
_MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")


def _check_assignors(names: tuple[str, ...]) -> None:
    if not names or not set(names) <= set(_SERVER_ASSIGNORS):
        raise ValueError(f"a list of {' and '.join(_SERVER_ASSIGNORS)}")


def _check_policy(policy: str) -> None:
    if policy not in _MIGRATION_POLICIES:
        raise ValueError(f"one of {', '.join(_MIGRATION_POLICIES)}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupSection:
    """Groups and committed offsets. `config.groups`."""

    # Groups of the classic protocol.
    group_min_session_timeout_ms: int = setting(
        _INT, 6000, "Shortest session timeout that a member may request.", minimum=0
    )
    group_max_session_timeout_ms: int = setting(
        _INT, 1_800_000, "Longest session timeout that a member may request.", minimum=0
    )
    group_initial_rebalance_delay_ms: int = setting(
        _INT, 3000, "Time that an empty group waits for more members to join.", minimum=0
    )
    group_max_size: int = setting(
        _INT, INT32_MAX, "Maximum number of members of a classic group.", minimum=1
    )

    # Groups of the consumer protocol (KIP-848).
    group_consumer_session_timeout_ms: int = setting(
        _INT, 45_000, "Time without a heartbeat after which a member is fenced.", minimum=1
    )
    group_consumer_min_session_timeout_ms: int = setting(
        _INT, 45_000, "Shortest session timeout that a group's own config may set.", minimum=1
    )
    group_consumer_max_session_timeout_ms: int = setting(
        _INT, 60_000, "Longest session timeout that a group's own config may set.", minimum=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        _INT, 5000, "Heartbeat interval of members.", minimum=1
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        _INT, 5000, "Shortest heartbeat interval that a group's own config may set.", minimum=1
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        _INT, 15_000, "Longest heartbeat interval that a group's own config may set.", minimum=1
    )
    group_consumer_assignment_interval_ms: int = setting(
        _INT,
        1000,
        "Minimum time between two assignments of a group of 100 or more members.",
        minimum=0,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        _INT,
        0,
        "Shortest assignment interval that a group's own config may set, at any group size.",
        minimum=0,
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        _INT, 15_000, "Longest assignment interval that a group's own config may set.", minimum=0
    )
    group_consumer_max_size: int = setting(
        _INT, INT32_MAX, "Maximum number of members of a consumer group.", minimum=1
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        _LIST,
        _SERVER_ASSIGNORS,
        "Server-side assignors; the first one serves members that name none.",
        check=_check_assignors,
    )
    group_consumer_migration_policy: str = setting(
        _STRING,
        "bidirectional",
        "Directions in which a group with members may change its protocol.",
        check=_check_policy,
    )

    # Committed offsets.
    offset_metadata_max_bytes: int = setting(
        _INT, 4096, "Longest metadata text that may be committed with an offset.", minimum=0
    )
    offsets_commit_timeout_ms: int = setting(
        _INT, 5000, "Time that an offset commit waits for the in-sync replicas.", minimum=1
    )
    offsets_load_buffer_size: int = setting(
        _INT, 5 * _MIB, "Maximum bytes read at a time while offsets are loaded.", minimum=1
    )
    offsets_retention_minutes: int = setting(
        _INT, 10_080, "Time after which the offsets of an unsubscribed group expire.", minimum=1
    )
    offsets_retention_check_interval_ms: int = setting(
        _LONG, 600_000, "Time between checks for expired offsets.", minimum=1
    )
    offsets_topic_num_partitions: int = setting(
        _INT, 50, "Number of partitions with which the offsets topic is created.", minimum=1
    )
    offsets_topic_replication_factor: int | None = setting(
        _SHORT,
        None,
        "Number of replicas of the offsets topic; by default 3, or the number of brokers if there "
        "are fewer. If set, the topic is created once there are as many brokers. With the embedded "
        "metadata store there is one replica.",
        minimum=1,
    )
    offsets_topic_segment_bytes: int = setting(
        _INT, 100 * _MIB, "Segment size of the offsets topic.", minimum=1
    )
    offsets_topic_compression_codec: int = setting(
        _INT,
        0,
        "Compression codec of the offsets topic, by number; 0 is none.",
        minimum=0,
        maximum=4,
    )
