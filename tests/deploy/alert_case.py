"""The cases of each alert in `deploy/prometheus/alerts.yml`: changes to healthy metrics.

Values have the notation of Prometheus' tests, one sample per minute: `5` is constant, `0+2` grows
by two per minute, `0|1` changes from 0 to 1 five minutes before the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MINUTES: Final = 180
_JUMP_MINUTES: Final = 5


@dataclass(frozen=True, slots=True)
class Change:
    """New values of a metric, in the first row with `labels` or in all of them (`is_for_all`).

    `is_new` adds a row that a broker has only after the first event."""

    metric: str
    values: str
    labels: Mapping[str, str] = field(default_factory=dict)
    is_for_all: bool = False
    is_new: bool = False


def series(values: str) -> str:
    """Return the values of three hours in promtool's notation."""
    if "|" in values:
        before, after = values.split("|")
        return f"{before}x{MINUTES - _JUMP_MINUTES} {after}x{_JUMP_MINUTES}"
    return f"{values}x{MINUTES}"


def _one(name: str, values: str, **labels: str) -> Change:
    return Change(f"millstream_{name}", values, labels)


def _all(name: str, values: str, **labels: str) -> Change:
    return Change(f"millstream_{name}", values, labels, is_for_all=True)


def _new(name: str, values: str, **labels: str) -> Change:
    return Change(f"millstream_{name}", values, labels, is_new=True)


#: Changes over time in healthy brokers, which a single scrape does not have.
HEALTHY: Final = (_all("lag_rounds_total", "0+4"),)

_SLOW: Final = "+Inf"
_GROUP: Final = "consumer_group"

#: The cases in which each alert fires.
CASES: Final[Mapping[str, tuple[tuple[Change, ...], ...]]] = {
    "MillstreamGroupFarBehind": ((_one(f"{_GROUP}_lag_seconds_max", "600"),),),
    "MillstreamGroupLagGrows": (
        (
            _one(f"{_GROUP}_lag_records_sum", "0+100"),
            _one(f"{_GROUP}_lag_seconds_max", "0+60"),
        ),
    ),
    "MillstreamDataLossAhead": (
        (
            _one(f"{_GROUP}_lag_seconds_max", "7200"),
            _one(f"{_GROUP}_headroom_seconds_min", "3600"),
        ),
    ),
    "MillstreamGroupDeserted": (
        (_one(f"{_GROUP}_members", "0"), _one(f"{_GROUP}_lag_records_sum", "5")),
    ),
    "MillstreamGroupUnstable": (
        (_new(f"{_GROUP}_state", "1", group="g", state="PreparingRebalance"),),
    ),
    "MillstreamGroupLagUnknown": ((_one(f"{_GROUP}_lag_unknown_partitions", "2"),),),
    "MillstreamDown": ((Change("up", "0"),),),
    "MillstreamStorageFailures": (
        (_one("log_failures_total", "0|1"),),
        (_one("compaction_failures_total", "0|1"),),
    ),
    "MillstreamLogsNotCompacted": ((_one("compaction_uncleanable_logs", "1"),),),
    "MillstreamProduceSlow": ((_one("request_seconds_bucket", "0+60", api="Produce", le=_SLOW),),),
    "MillstreamServerErrors": (
        (_new("request_errors_total", "0+1", api="Produce", error="KAFKA_STORAGE_ERROR"),),
    ),
    "MillstreamConnectionsRefused": (
        (_new("connections_refused_total", "0+1", reason="max.connections"),),
    ),
    "MillstreamTaskFailures": (
        (_one("task_failures_total", "0|1", task="controller"),),
        (_new("task_failures_total", "_|1", task="broker-expulsion-of-old"),),
    ),
    "MillstreamCallbackFailures": ((_one("callback_failures_total", "0|1", kind="fetch"),),),
    "MillstreamRequestsRejected": ((_one("requests_rejected_total", "0+60"),),),
    "MillstreamCertificateExpires": (
        (_new("tls_certificate_expiry_timestamp_seconds", "100000", listener="SSL"),),
    ),
    "MillstreamCertificateRejected": ((_new("tls_reload_failures_total", "0|1", listener="SSL"),),),
    "MillstreamRequestMemoryShort": ((_one("throttled_reads_total", "0+120"),),),
    "MillstreamFilesRunOut": (
        (Change("process_open_fds", "950"), Change("process_max_fds", "1000")),
    ),
    "MillstreamClientMetricsFolded": ((_one("metrics_clients_folded", "3"),),),
    "MillstreamLagUnknown": (
        (_one("lag_failures_total", "0+1"),),
        (_one("lag_rounds_total", "7"),),
    ),
    "MillstreamPartitionsOffline": ((_one("offline_partitions", "1"),),),
    "MillstreamDiskLost": ((_one("partitions_without_in_sync_replica", "1"),),),
    "MillstreamUnderMinIsr": ((_one("under_min_isr_partitions", "1"),),),
    "MillstreamAtMinIsr": ((_one("at_min_isr_partitions", "1"),),),
    "MillstreamUnderReplicated": ((_one("under_replicated_partitions", "1"),),),
    "MillstreamIsrUnstable": (
        (_one("isr_shrinks_total", "0+2"), _one("isr_expands_total", "0+2")),
    ),
    "MillstreamReplicaLag": (
        (_one("replica_lag_seconds_max", "120"), _one("replica_lag_records_max", "5")),
    ),
    "MillstreamLeadersUneven": ((_one("leader_partitions", "1000"),),),
    "MillstreamLeadersNotPreferred": (
        (_all("preferred_replica_imbalance", "2"), _all("cluster_partitions", "19")),
    ),
    "MillstreamNoController": (
        (_all("active_controller", "0"),),
        (_all("active_controller", "1"),),
    ),
    "MillstreamBrokersDisagree": ((_one("controller_id", "77"),),),
    "MillstreamControllerMoves": ((_one("controller_elections_total", "0+1"),),),
    "MillstreamElectionsSlow": ((_one("leader_election_seconds_bucket", "0+60", le=_SLOW),),),
    "MillstreamUncleanElection": ((_one("unclean_leader_elections_total", "0|1"),),),
    "MillstreamReassignmentStuck": ((_one("reassigning_partitions", "3"),),),
    "MillstreamDecommissionStuck": ((_new("decommission_replicas_left", "5", broker="3"),),),
    "MillstreamBrokerFenced": ((_one("broker_fenced", "1"),),),
    "MillstreamLeaseAtRisk": (
        (_one("lease_renewal_failures_total", "0+1"),),
        (_one("lease_losses_total", "0+1"),),
        (_one("lease_renewed_ago_seconds", "5"),),
    ),
    "MillstreamTransactionsAborted": (
        (_one("transactions_aborted_total", "0+1"), _one("transactions_open", "1")),
    ),
    "MillstreamDeadLetters": ((_all("log_end_offset", "0+1", topic="t.dlq"),),),
    "MillstreamDeadLettersOld": ((_one("dead_letters_oldest_age_seconds", "100000"),),),
    "MillstreamDeadLettersMany": ((_one("dead_letters", "20000"),),),
}
