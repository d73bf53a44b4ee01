"""The broker's settings for groups and committed offsets. Part of `BrokerConfig`."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigType, Scope, setting
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
class GroupConfig:
    """The fields; `BrokerConfig` reads them from its sources."""

    # Groups of the classic protocol.
    group_min_session_timeout_ms: int = setting(
        _INT, 6000, "Shortest session timeout that a member may ask for.", minimum=0
    )
    group_max_session_timeout_ms: int = setting(
        _INT, 1_800_000, "Longest session timeout that a member may ask for.", minimum=0
    )
    group_initial_rebalance_delay_ms: int = setting(
        _INT, 3000, "Time that an empty group waits for more members to come.", minimum=0
    )
    group_max_size: int = setting(_INT, INT32_MAX, "Members that a group may have.", minimum=1)

    # Groups of the consumer protocol (KIP-848).
    group_consumer_session_timeout_ms: int = setting(
        _INT, 45_000, "Silence after which a member is fenced.", minimum=1
    )
    group_consumer_min_session_timeout_ms: int = setting(
        _INT, 45_000, "Shortest session timeout that a group's own config may set.", minimum=1
    )
    group_consumer_max_session_timeout_ms: int = setting(
        _INT, 60_000, "Longest session timeout that a group's own config may set.", minimum=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        _INT, 5000, "Time between heartbeats that members are told.", minimum=1
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
        "Least time between two assignments of a group of 100 or more.",
        minimum=0,
        scope=Scope.CLUSTER_WIDE,
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        _INT, 0, "Shortest such time that a group's own config may set, at any size.", minimum=0
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        _INT, 15_000, "Longest such time that a group's own config may set.", minimum=0
    )
    group_consumer_max_size: int = setting(
        _INT, INT32_MAX, "Members that a consumer group may have.", minimum=1
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        _LIST,
        _SERVER_ASSIGNORS,
        "Assignors on offer; the first is for members that ask for none.",
        check=_check_assignors,
    )
    group_consumer_migration_policy: str = setting(
        _STRING,
        "bidirectional",
        "In which directions a live group may change its protocol.",
        check=_check_policy,
    )

    # Committed offsets.
    offset_metadata_max_bytes: int = setting(
        _INT, 4096, "Longest text that may be committed with an offset.", minimum=0
    )
    offsets_commit_timeout_ms: int = setting(
        _INT, 5000, "Time that replicas may take to follow a commit.", minimum=1
    )
    offsets_load_buffer_size: int = setting(
        _INT, 5 * _MIB, "Bytes read at a time when offsets are loaded, at most.", minimum=1
    )
    offsets_retention_minutes: int = setting(
        _INT, 10_080, "Time that offsets are kept once nobody subscribes any more.", minimum=1
    )
    offsets_retention_check_interval_ms: int = setting(
        _LONG, 600_000, "Time between looks for such offsets.", minimum=1
    )
    offsets_topic_num_partitions: int = setting(
        _INT, 50, "Partitions of the offsets topic when it is made.", minimum=1
    )
    offsets_topic_replication_factor: int | None = setting(
        _SHORT,
        None,
        "Replicas of it; by default 3, or as many as there are brokers. If set, it is made once "
        "there are as many brokers; with the embedded metadata store there is one.",
        minimum=1,
    )
    offsets_topic_segment_bytes: int = setting(_INT, 100 * _MIB, "Size of its segments.", minimum=1)
    offsets_topic_compression_codec: int = setting(
        _INT, 0, "Compression of its records, by number; 0 is none.", minimum=0, maximum=4
    )

    # What is shown of groups.
    metrics_lag_interval_ms: int = setting(
        _INT, 15_000, "Time between looks at how far groups are behind; 0 is never.", minimum=0
    )
    metrics_group_labels_max: int = setting(
        _INT, 1000, "Groups with metrics of their own; the rest are added up.", minimum=0
    )
    metrics_group_partition_labels_max: int = setting(
        _INT, 2000, "Partitions, over all groups, with metrics of their own.", minimum=0
    )
