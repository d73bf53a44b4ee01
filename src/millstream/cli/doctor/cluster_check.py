"""Checks of a cluster: brokers, partitions, in-sync replicas, groups and transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.cli.cluster.cluster import PartitionRow, partition_rows
from millstream.cli.doctor.finding import CheckScope, CheckState, Finding
from millstream.cli.doctor.group_lag import group_lags
from millstream.cli.support.cluster_connection import connected_cluster
from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import CommandError, raise_failure
from millstream.cli.support.terminal import counted
from millstream.cli.support.topic_config import topic_configs
from millstream.cli.txn.txn_admin import TransactionAdmin

if TYPE_CHECKING:
    from millstream.client.admin import Admin, ClusterDescription

#: The default of the broker's transaction.max.timeout.ms.
_IDLE_MS: Final = 15 * 60_000
#: The share of partitions that may be led by another than the preferred replica.
_MOVED_SHARE_MAX: Final = 0.1
_NAMES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to check, and from which lag on a group counts as lagging."""

    servers: str
    properties: list[str] | None
    timeout_s: float
    lag_max: int


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The state of the cluster that the checks share."""

    target: Target
    connection: Connection
    admin: Admin
    described: ClusterDescription
    partitions: list[PartitionRow]


def cluster_findings(target: Target) -> Iterator[Finding]:
    """Yield the finding of each check; only one if no broker responds."""
    connection = Connection(target.servers, target.properties, target.timeout_s)
    try:
        admin, described = connection.reach()
        rows = partition_rows(connection, admin)
    except CommandError as failure:
        yield _finding(
            "reachable",
            CheckState.UNHEALTHY,
            str(failure).partition(". Is a broker")[0],
            "Start a broker with `millstream serve`, or name another with --bootstrap-server.",
        )
        return
    yield _finding("reachable", CheckState.HEALTHY, f"cluster {described.cluster_id} responds")
    cluster = _Cluster(target, connection, admin, described, rows)
    checks: Sequence[tuple[str, Callable[[_Cluster], Finding]]] = (
        ("brokers", _check_brokers),
        ("partitions", _check_partitions),
        ("in-sync replicas", _check_min_isr),
        ("preferred leaders", _check_preferred),
        ("groups", _check_groups),
        ("transactions", _check_transactions),
    )
    for name, check in checks:
        try:
            yield check(cluster)
        except CommandError as failure:
            advice = "Check the permissions and the log of the brokers, then run this again."
            yield _finding(name, CheckState.WARNING, str(failure).rstrip("."), advice)


def _finding(check: str, state: CheckState, found: str, advice: str | None = None) -> Finding:
    return Finding(CheckScope.CLUSTER, check, state, found, advice)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


def _check_brokers(cluster: _Cluster) -> Finding:
    alive = {broker.node_id for broker in cluster.described.brokers}
    lost = sorted({node for row in cluster.partitions for node in row.replicas} - alive)
    if lost:
        return _finding(
            "brokers",
            CheckState.UNHEALTHY,
            f"{len(alive)} alive, missing: {', '.join(map(str, lost))}",
            "Start the missing brokers, or remove one for good with `millstream broker"
            " decommission ID`.",
        )
    if not cluster.described.controller:
        advice = "Check the log of the brokers and the connection to etcd."
        return _finding("brokers", CheckState.UNHEALTHY, "there is no controller", advice)
    return _finding("brokers", CheckState.HEALTHY, f"{len(alive)} alive")


def _check_partitions(cluster: _Cluster) -> Finding:
    offline = [row.name for row in cluster.partitions if row.leader is None]
    behind = [row.name for row in cluster.partitions if row.is_under_replicated]
    if offline:
        return _finding(
            "partitions",
            CheckState.UNHEALTHY,
            f"{len(offline):,} without a leader: {_listed(offline)}",
            "Start the brokers of their replicas: `millstream cluster partitions --unhealthy`"
            " shows them. If these are lost, see `millstream cluster elect --unclean`.",
        )
    if behind:
        return _finding(
            "partitions",
            CheckState.UNHEALTHY,
            f"{len(behind):,} under-replicated: {_listed(behind)}",
            "Wait while replicas catch up. If the number stays, check the disk, network and log of"
            " the brokers in `millstream cluster partitions --unhealthy`.",
        )
    found = f"all {counted(len(cluster.partitions), 'partition')} are in sync"
    return _finding("partitions", CheckState.HEALTHY, found)


def _check_min_isr(cluster: _Cluster) -> Finding:
    """Check that one more failure does not stop writes with acks=all."""
    name = "in-sync replicas"
    minimum = _min_isr(cluster)
    below = [row.name for row in cluster.partitions if len(row.isr) < minimum[row.topic]]
    if below:
        return _finding(
            name,
            CheckState.UNHEALTHY,
            f"{len(below):,} below min.insync.replicas: {_listed(below)}",
            "Producers with acks=all fail: start the missing brokers.",
        )
    brokers = len(cluster.described.brokers)
    tight = sorted(
        {
            row.topic
            for row in cluster.partitions
            if brokers > 1 and len(row.replicas) <= minimum[row.topic]
        }
    )
    if tight:
        return _finding(
            name,
            CheckState.WARNING,
            f"one failure stops writes to {counted(len(tight), 'topic')}: {_listed(tight)}",
            "Give them more replicas than min.insync.replicas (usually 3 and 2).",
        )
    return _finding(name, CheckState.HEALTHY, "no partition is below min.insync.replicas")


def _min_isr(cluster: _Cluster) -> dict[str, int]:
    """Return min.insync.replicas of each topic."""
    topics = dict.fromkeys(row.topic for row in cluster.partitions)
    with cluster.connection.failing():
        found = topic_configs(cluster.connection, cluster.admin, topics, raise_failure)
    return {topic: int(row["min.insync.replicas"].value or 1) for topic, row in found.items()}


def _check_preferred(cluster: _Cluster) -> Finding:
    moved = [row for row in cluster.partitions if not row.is_led_by_preferred]
    share = len(moved) / len(cluster.partitions) if cluster.partitions else 0.0
    found = (
        f"{len(moved):,} of {counted(len(cluster.partitions), 'partition')} led by another replica"
    )
    if share <= _MOVED_SHARE_MAX:
        return _finding("preferred leaders", CheckState.HEALTHY, found)
    advice = "Balance the load with `millstream cluster elect --all-topics`."
    return _finding("preferred leaders", CheckState.WARNING, found, advice)


def _check_groups(cluster: _Cluster) -> Finding:
    lags = group_lags(cluster.connection, cluster.admin)
    lost = [each.group for each in lags if each.has_lost_records]
    if lost:
        return _finding(
            "groups",
            CheckState.UNHEALTHY,
            f"retention deleted unread records of {_listed(lost)}",
            "Raise retention.ms of the topic, add consumers, or skip the gap with `millstream group"
            " reset-offsets`.",
        )
    behind = [each for each in lags if each.records > cluster.target.lag_max]
    if behind:
        shown = [f"{each.group} ({counted(each.records, 'record')})" for each in behind]
        return _finding(
            "groups",
            CheckState.WARNING,
            f"{counted(len(behind), 'group')} behind: {_listed(shown)}",
            "See `millstream group describe GROUP`: add members, or find out why they are slow.",
        )
    limit = f"none is more than {counted(cluster.target.lag_max, 'record')} behind"
    return _finding("groups", CheckState.HEALTHY, f"{counted(len(lags), 'group')}, {limit}")


def _check_transactions(cluster: _Cluster) -> Finding:
    target = cluster.target
    with connected_cluster(target.servers, target.properties, target.timeout_s) as client:
        found = TransactionAdmin(client, target.timeout_s).hanging(_IDLE_MS)
    if not found:
        return _finding("transactions", CheckState.HEALTHY, "no transaction hangs")
    places = [f"{each.topic}-{each.partition}" for each in found]
    return _finding(
        "transactions",
        CheckState.UNHEALTHY,
        f"{len(found):,} hanging: {_listed(places)}",
        "Consumers with read_committed wait there: `millstream txn abort --hanging` ends them.",
    )
