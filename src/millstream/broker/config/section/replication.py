"""Settings for replication between brokers."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigScope, ConfigType, setting
from millstream.model.sentinel import INT64_MAX
from millstream.replication.leader.follower_sessions import FETCHERS_MAX

_INT, _LONG = ConfigType.INT, ConfigType.LONG
_MIB: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSection:
    """Replication. `config.replication`."""

    num_replica_fetchers: int = setting(
        _INT,
        1,
        "Number of connections to each leader, with one request in progress each. More than one"
        " helps where the latency between brokers is high.",
        minimum=1,
        maximum=FETCHERS_MAX,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    replica_lag_time_max_ms: int = setting(
        _LONG, 30_000, "Time behind its leader after which a replica leaves the ISR.", minimum=1
    )
    replica_fetch_max_bytes: int = setting(
        _INT, _MIB, "Maximum bytes of one partition in a follower's fetch.", minimum=1
    )
    replica_fetch_response_max_bytes: int = setting(
        _INT, 10 * _MIB, "Maximum bytes of a response to a follower's fetch.", minimum=1
    )
    replica_fetch_min_bytes: int = setting(
        _INT, 1, "Bytes that a leader waits for before it responds to a follower.", minimum=1
    )
    replica_fetch_wait_max_ms: int = setting(
        _INT, 500, "Maximum time that a leader waits for replica.fetch.min.bytes.", minimum=1
    )
    replica_fetch_backoff_ms: int = setting(
        _INT, 1000, "Backoff of a follower after it could not reach its leader.", minimum=0
    )
    replica_socket_timeout_ms: int = setting(
        _INT,
        30_000,
        "Time without a response after which a follower closes the connection to its leader.",
        minimum=1,
    )
    replica_catch_up_rate: int = setting(
        _LONG,
        64 * _MIB,
        "Bytes per second that this broker sends to a follower outside the ISR while producers"
        " write, or 2.5 times the rate of the producers if that is higher.",
        minimum=1,
    )
    leader_replication_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes per second that this broker sends to the replicas in leader.replication.throttled."
        "replicas.",
        minimum=1,
        scope=ConfigScope.PER_BROKER,
        is_shown_if_set=True,
    )
    follower_replication_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes per second that this broker fetches for the replicas in follower.replication."
        "throttled.replicas.",
        minimum=1,
        scope=ConfigScope.PER_BROKER,
        is_shown_if_set=True,
    )
    leader_reassignment_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes per second that this broker sends to replicas added by a reassignment.",
        minimum=1,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    follower_reassignment_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes per second that this broker fetches for replicas added by a reassignment.",
        minimum=1,
        scope=ConfigScope.CLUSTER_WIDE,
    )
