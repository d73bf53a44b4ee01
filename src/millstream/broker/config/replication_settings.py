"""The broker's settings for replication between brokers. Part of `BrokerConfig`."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.broker.config.transaction_settings import TransactionConfig
from millstream.model.definition import ConfigType, Scope, setting
from millstream.model.sentinel import INT64_MAX
from millstream.replication.leader.follower_sessions import FETCHERS_MAX

_STRING, _INT, _LONG = ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_MIB: Final = 1024 * 1024

#: What may serve a consumer's reads besides the leader. The long name is what Kafka's users write.
RACK_AWARE_SELECTOR: Final = "rack"
_RACK_AWARE_SELECTORS: Final = (
    RACK_AWARE_SELECTOR,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
)


def _check_selector(value: str | None) -> None:
    if value and value not in _RACK_AWARE_SELECTORS:
        raise ValueError(f"nothing, or {' or '.join(_RACK_AWARE_SELECTORS)}")


def _check_broker_ids(values: tuple[str, ...]) -> None:
    if not all(value.isascii() and value.isdigit() for value in values):
        raise ValueError("numbers of brokers")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig(TransactionConfig):
    """The fields; `BrokerConfig` reads them from its sources."""

    inter_broker_listener_name: str | None = setting(
        _STRING,
        None,
        "Listener through which brokers reach each other; the first one if not given.",
    )
    num_replica_fetchers: int = setting(
        _INT,
        1,
        "Connections to each broker that this one follows, and requests to it under way. More than"
        " one helps where brokers are far apart.",
        minimum=1,
        maximum=FETCHERS_MAX,
        scope=Scope.CLUSTER_WIDE,
    )
    cluster_settle_ms: int = setting(
        _INT,
        10_000,
        "Time to wait for more brokers, where fewer than three are known, before a topic is created"
        " with a default number of replicas: counted from this broker's start, or from when it last"
        " saw a new broker.",
        minimum=0,
    )
    replica_lag_time_max_ms: int = setting(
        _LONG, 30_000, "Time behind its leader after which a replica is not in sync.", minimum=1
    )
    replica_fetch_max_bytes: int = setting(
        _INT, _MIB, "Bytes of one partition that a follower asks for at a time.", minimum=1
    )
    replica_fetch_response_max_bytes: int = setting(
        _INT, 10 * _MIB, "Bytes that a follower asks for in one request.", minimum=1
    )
    replica_fetch_min_bytes: int = setting(
        _INT, 1, "Bytes that a leader waits for before it answers a follower.", minimum=1
    )
    replica_fetch_wait_max_ms: int = setting(
        _INT, 500, "Time that a leader may wait for them.", minimum=1
    )
    replica_fetch_backoff_ms: int = setting(
        _INT, 1000, "Rest of a follower after its leader could not be reached.", minimum=0
    )
    replica_socket_timeout_ms: int = setting(
        _INT, 30_000, "Silence after which a follower takes its leader for lost.", minimum=1
    )
    replica_selector_class: str | None = setting(
        _STRING,
        None,
        "Set to rack, consumers that tell their rack are sent to an in-sync replica there.",
        check=_check_selector,
    )
    replica_catch_up_rate: int = setting(
        _LONG,
        64 * _MIB,
        "Bytes a second that this broker sends to a follower which is not in sync while producers"
        " write, or two and a half times what they write, if that is more.",
        minimum=1,
    )
    leader_replication_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes a second that this broker sends to replicas under leader.replication.throttled."
        "replicas.",
        minimum=1,
        scope=Scope.PER_BROKER,
        is_shown_if_set=True,
    )
    follower_replication_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes a second that this broker fetches for replicas under follower.replication."
        "throttled.replicas.",
        minimum=1,
        scope=Scope.PER_BROKER,
        is_shown_if_set=True,
    )

    leader_reassignment_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes a second that this broker sends to replicas that a reassignment adds.",
        minimum=1,
        scope=Scope.CLUSTER_WIDE,
    )
    follower_reassignment_throttled_rate: int = setting(
        _LONG,
        INT64_MAX,
        "Bytes a second that this broker fetches for replicas that a reassignment adds.",
        minimum=1,
        scope=Scope.CLUSTER_WIDE,
    )
    decommissioned_brokers: tuple[str, ...] = setting(
        ConfigType.LIST,
        (),
        "Brokers that are to hold no replicas: those they have are moved away. Set at run time, for"
        " all brokers; see `millstream broker decommission`.",
        check=_check_broker_ids,
        scope=Scope.CLUSTER_WIDE,
    )

    auto_leader_rebalance_enable: bool = setting(
        ConfigType.BOOLEAN, True, "Whether partitions go back to their preferred leaders."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        _LONG, 300, "How often the controller looks at who leads what.", minimum=1
    )
    leader_imbalance_per_broker_percentage: int = setting(
        _INT,
        10,
        "Share of the partitions that a broker should lead which others may.",
        minimum=0,
        maximum=100,
    )

    @property
    def reads_from_nearest(self) -> bool:
        """Whether consumers may read from followers (KIP-392)."""
        return bool(self.replica_selector_class)
