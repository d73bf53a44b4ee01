"""The broker's settings for transactions. Part of `BrokerConfig`, as those for groups are."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.broker.config.group_settings import GroupConfig
from millstream.model.definition import ConfigType, Scope, setting

_INT, _SHORT, _BOOLEAN = ConfigType.INT, ConfigType.SHORT, ConfigType.BOOLEAN
_MIB: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig(GroupConfig):
    """The fields; `BrokerConfig` reads them from its sources."""

    transaction_version: int = setting(
        _SHORT,
        2,
        "Transaction version that clients are told: 2 raises the epoch at every end (KIP-890), 0 "
        "and 1 are the classic protocol. It counts until UpdateFeatures finalizes a version.",
        minimum=0,
        maximum=2,
    )
    transaction_max_timeout_ms: int = setting(
        _INT, 900_000, "Longest timeout that a producer may ask for.", minimum=1
    )
    transaction_two_phase_commit_enable: bool = setting(
        _BOOLEAN,
        True,
        "Whether producers may prepare transactions that never time out (KIP-939), as the Spark "
        "sink does. One that is left behind holds up read-committed readers until it is ended.",
    )
    transaction_partition_verification_enable: bool = setting(
        _BOOLEAN,
        True,
        "Whether a partition takes a batch of a transaction only if its coordinator knows of it.",
        scope=Scope.CLUSTER_WIDE,
    )
    transactional_id_expiration_ms: int = setting(
        _INT, 604_800_000, "Time after which an unused transactional id is forgotten.", minimum=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        _INT, 3_600_000, "Time between looks for such ids.", minimum=1
    )
    transaction_state_log_num_partitions: int = setting(
        _INT, 50, "Partitions of the transactions topic when it is made.", minimum=1
    )
    transaction_state_log_replication_factor: int | None = setting(
        _SHORT,
        None,
        "Replicas of it; by default 3, or as many as there are brokers. If set, it is made once "
        "there are as many brokers; with the embedded metadata store there is one.",
        minimum=1,
    )
    transaction_state_log_min_isr: int | None = setting(
        _INT,
        None,
        "In-sync replicas that it needs, or as many as it has; by default 2 with three replicas, "
        "else 1.",
        minimum=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        _INT, 100 * _MIB, "Size of its segments.", minimum=1
    )
    transaction_state_log_load_buffer_size: int = setting(
        _INT, 5 * _MIB, "Bytes read at a time when it is loaded, at most.", minimum=1
    )
