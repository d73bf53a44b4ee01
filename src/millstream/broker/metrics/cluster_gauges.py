"""The gauges of the cluster: replication, controller, lease, and transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from millstream.broker.lifecycle.membership import Membership
from millstream.broker.metrics.broker_metrics import Metrics, RowSource
from millstream.broker.metrics.exposition import Histogram
from millstream.broker.metrics.replication_summary import (
    ClusterPartitions,
    LedPartitions,
    ReplicationSummary,
)
from millstream.controller.controller import Controller
from millstream.metadata.catalog import Catalog
from millstream.metadata.registration import Registration
from millstream.replication.stats import ReplicationStats
from millstream.transactions.transaction_shards import TransactionShards

_Counts = TypeVar("_Counts")

_LED: Final[tuple[tuple[str, str, Callable[[LedPartitions], float]], ...]] = (
    ("leader_partitions", "Partitions that this broker leads.", lambda led: led.partitions),
    (
        "under_replicated_partitions",
        "Partitions led here with replicas out of sync.",
        lambda led: led.under_replicated,
    ),
    (
        "under_min_isr_partitions",
        "Partitions led here with fewer in sync than min.insync.replicas: acks=all is rejected.",
        lambda led: led.under_min_isr,
    ),
    (
        "at_min_isr_partitions",
        "Under-replicated partitions led here with exactly min.insync.replicas in sync.",
        lambda led: led.at_min_isr,
    ),
    (
        "reassignment_records_left",
        "Records that reassignments still have to copy, of partitions led here.",
        lambda led: led.moving_records,
    ),
)
_CLUSTER: Final[tuple[tuple[str, str, Callable[[ClusterPartitions], float]], ...]] = (
    ("cluster_partitions", "Partitions of the cluster.", lambda cluster: cluster.partitions),
    ("offline_partitions", "Partitions without a leader.", lambda cluster: cluster.offline),
    (
        "partitions_without_in_sync_replica",
        "Partitions that wait for the disk of a replica to return, or for an unclean election.",
        lambda cluster: cluster.abandoned,
    ),
    ("reassigning_partitions", "Partitions being reassigned.", lambda cluster: cluster.reassigning),
    (
        "preferred_replica_imbalance",
        "Partitions whose leader is not the preferred replica.",
        lambda cluster: cluster.not_preferred,
    ),
)
_ON_CONTROLLER: Final = " Reported by the controller; 0 elsewhere."


def show_replication(
    metrics: Metrics, stats: ReplicationStats, summary: ReplicationSummary
) -> None:
    """Add the counters of replication, and the counts of `summary`, refreshed at each scrape."""
    _show_replication_counters(metrics, stats)
    metrics.before_render.append(summary.refresh)
    for name, description, of_led in _LED:
        metrics.add_gauge(name, description, _reader(lambda: summary.led, of_led))
    for name, description, of_cluster in _CLUSTER:
        text = description + _ON_CONTROLLER
        metrics.add_gauge(name, text, _reader(lambda: summary.cluster, of_cluster))
    for unit, lag in (
        ("records", lambda: summary.led.lag_records_max),
        ("seconds", lambda: summary.led.lag_seconds_max),
    ):
        metrics.add_rows(
            f"replica_lag_{unit}_max",
            "gauge",
            f"Lag of a follower in {unit}, in its worst partition led here.",
            ("follower",),
            _rows(lag),
        )
    metrics.add_rows(
        "decommission_replicas_left",
        "gauge",
        "Replicas left on a broker that is being decommissioned. Reported by the controller.",
        ("broker",),
        _rows(lambda: summary.cluster.to_empty),
    )


def _show_replication_counters(metrics: Metrics, stats: ReplicationStats) -> None:
    metrics.add_attributes(
        "replication",
        "counter",
        stats,
        {
            "bytes_out": "Bytes sent to followers.",
            "bytes_in": "Bytes received from leaders.",
            "truncations": "Logs truncated to match their leader's.",
            "connection_failures": "Connections to leaders that failed or broke.",
            "partition_failures": "Partitions that could not be fetched from their leader.",
        },
    )
    for name, description, attribute in (
        ("shrinks", "ISR changes of partitions led here that removed a replica.", "isr_shrinks"),
        ("expands", "ISR changes of partitions led here that added a replica.", "isr_expands"),
        (
            "failed_updates",
            "ISR changes that lost a race, or whose outcome is unknown.",
            "isr_retries",
        ),
    ):
        metrics.add_counter(f"isr_{name}_total", description, _attribute(stats, attribute))


def show_membership(
    metrics: Metrics, membership: Membership, catalog: Catalog, session_timeout_ms: int
) -> None:
    """Add the metrics of the controller and of the broker's lease."""
    metrics.add_gauge("brokers", "Brokers that are alive.", lambda: len(catalog.image.brokers))
    metrics.add_gauge(
        "controller_id",
        "The controller in this broker's metadata; -1 while there is none.",
        lambda: catalog.image.controller,
    )
    _show_controller(metrics, membership.controller)
    _show_lease(metrics, membership.registration, session_timeout_ms)


def _show_controller(metrics: Metrics, controller: Controller) -> None:
    stats = controller.stats
    took = Histogram()
    stats.on_elected = took.observe
    metrics.add_gauge(
        "active_controller", "1 on the controller, 0 elsewhere.", lambda: int(controller.is_active)
    )
    for name, description, attribute in (
        ("controller_elections", "Times that this broker became the controller.", "terms"),
        ("leader_elections", "Leaders elected by this broker as controller.", "elections"),
        (
            "unclean_leader_elections",
            "Leaders elected that were not in sync.",
            "unclean_elections",
        ),
        ("reassignments_completed", "Reassignments completed.", "reassignments_completed"),
    ):
        metrics.add_counter(f"{name}_total", description, _attribute(stats, attribute))
    metrics.add_rows(
        "leader_election_seconds",
        "histogram",
        "Time that the controller took for all elections after one change.",
        (),
        lambda: [((), took)],
    )


def _show_lease(metrics: Metrics, registration: Registration, session_timeout_ms: int) -> None:
    metrics.add_gauge(
        "broker_fenced",
        "1 while the broker is fenced, because its lease may have expired.",
        lambda: int(registration.is_fenced),
    )
    metrics.add_gauge(
        "lease_renewed_ago_seconds",
        "Time since the metadata store last confirmed the broker's lease.",
        lambda: registration.renewed_ago_s,
    )
    metrics.add_gauge(
        "lease_seconds",
        "Time after which a lease expires that is not renewed.",
        lambda: session_timeout_ms / 1000,
    )
    metrics.add_counter(
        "lease_renewal_failures_total",
        "Renewals of the broker's lease that failed.",
        lambda: registration.stats.renewal_failures,
    )
    metrics.add_counter(
        "lease_losses_total",
        "Times that the broker's lease expired and it registered again.",
        lambda: registration.stats.losses,
    )


def show_transactions(metrics: Metrics, shards: TransactionShards) -> None:
    """Add the metrics of the transactions that this broker coordinates."""
    is_open = 0

    async def count() -> None:
        nonlocal is_open
        is_open = await shards.count_open()

    metrics.before_render.append(count)
    metrics.add_gauge(
        "transactions_open",
        "Transactions in progress that this broker coordinates.",
        lambda: is_open,
    )
    for name in ("committed", "aborted"):
        metrics.add_counter(
            f"transactions_{name}_total",
            f"Transactions {name} by this broker as their coordinator.",
            _attribute(shards.stats, name),
        )


def _attribute(owner: Any, name: str) -> Callable[[], float]:
    return lambda: getattr(owner, name)


def _reader(read: Callable[[], _Counts], part: Callable[[_Counts], float]) -> Callable[[], float]:
    return lambda: part(read())


def _rows(read: Callable[[], Mapping[int, float]]) -> RowSource:
    return lambda: [((str(broker_id),), value) for broker_id, value in sorted(read().items())]
