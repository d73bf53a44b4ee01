"""Settings for transactions."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigScope, ConfigType, setting

_INT, _SHORT, _BOOLEAN = ConfigType.INT, ConfigType.SHORT, ConfigType.BOOLEAN
_MIB: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSection:
    """Transactions. `config.transactions`."""

    transaction_version: int = setting(
        _SHORT,
        2,
        "Transaction version offered to clients: 2 raises the producer epoch at every end "
        "(KIP-890), 0 and 1 are the classic protocol. It applies until UpdateFeatures finalizes a "
        "version.",
        minimum=0,
        maximum=2,
    )
    transaction_max_timeout_ms: int = setting(
        _INT, 900_000, "Longest transaction timeout that a producer may request.", minimum=1
    )
    transaction_two_phase_commit_enable: bool = setting(
        _BOOLEAN,
        True,
        "Whether producers may prepare transactions that never time out (KIP-939), as the Spark "
        "sink does. An abandoned one blocks read-committed consumers until it is ended.",
    )
    transaction_partition_verification_enable: bool = setting(
        _BOOLEAN,
        True,
        "Whether a partition verifies with the transaction coordinator that it is part of the "
        "transaction before it appends a transactional batch.",
        scope=ConfigScope.CLUSTER_WIDE,
    )
    transactional_id_expiration_ms: int = setting(
        _INT, 604_800_000, "Time after which an unused transactional id expires.", minimum=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        _INT, 3_600_000, "Time between checks for expired transactional ids.", minimum=1
    )
    transaction_state_log_num_partitions: int = setting(
        _INT, 50, "Number of partitions with which the transactions topic is created.", minimum=1
    )
    transaction_state_log_replication_factor: int | None = setting(
        _SHORT,
        None,
        "Number of replicas of the transactions topic; by default 3, or the number of brokers if "
        "there are fewer. If set, the topic is created once there are as many brokers. With the "
        "embedded metadata store there is one replica.",
        minimum=1,
    )
    transaction_state_log_min_isr: int | None = setting(
        _INT,
        None,
        "min.insync.replicas of the transactions topic, at most its number of replicas; by default "
        "2 with three replicas, else 1.",
        minimum=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        _INT, 100 * _MIB, "Segment size of the transactions topic.", minimum=1
    )
    transaction_state_log_load_buffer_size: int = setting(
        _INT, 5 * _MIB, "Maximum bytes read at a time while transactions are loaded.", minimum=1
    )
