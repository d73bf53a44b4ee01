"""The gauges of the broker itself: partitions, connections, tasks, upkeep, compaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from millstream.broker.context import Services
from millstream.broker.metrics.broker_metrics import Metrics, PartitionSize
from millstream.env.supervisor import Supervisor
from millstream.log.compaction.cleaner import CleanerStats
from millstream.log.upkeep import UpkeepStats
from millstream.model.acl import label
from millstream.model.failure import CallbackKind
from millstream.model.reply import ReplyKind
from millstream.net.gate import Gate
from millstream.net.rejection import Rejection
from millstream.net.tls_transport import HandshakeFailure
from millstream.replication.replicas import Replicas
from millstream.security.acl.authorizer import Authorizer
from millstream.security.tls_source import TlsSource

#: Shown from the start: a counter that appears with its first failure shows no increase.
_KINDS: Final = (*ReplyKind, *CallbackKind)


def show_broker(metrics: Metrics, services: Services, gate: Gate) -> None:
    """Add the metrics of partitions, connections, callbacks and rejections."""
    replicas, catalog = services.replicas, services.catalog
    metrics.partition_source = partial(partition_sizes, replicas)
    metrics.connections = Connections(gate)
    metrics.add_gauge("topics", "Topics.", lambda: len(catalog.image.topics))
    metrics.add_gauge("partitions", "Partitions on this broker.", lambda: len(replicas))
    metrics.add_gauge(
        "fetch_sessions", "Fetch sessions open.", lambda: len(services.fetch_sessions)
    )
    metrics.add_rows(
        "callback_failures_total",
        "counter",
        "Callbacks and deferred responses that raised, by kind.",
        ("kind",),
        lambda: [((kind,), services.failures.counts[kind]) for kind in _KINDS],
    )
    metrics.add_rows(
        "requests_rejected_total",
        "counter",
        "Requests and connections rejected without a response, by reason.",
        ("reason",),
        lambda: [((kind,), gate.rejections.counts[kind]) for kind in Rejection],
    )


def show_tls(metrics: Metrics, sources: Mapping[str, TlsSource], gate: Gate) -> None:
    """Add the handshakes, and the certificates of listeners; no rows on a broker without TLS."""
    failures = gate.counters.handshake_failures
    metrics.add_gauge(
        "tls_handshakes_in_progress", "TLS handshakes in progress.", lambda: gate.handshakes
    )
    metrics.add_rows(
        "tls_handshake_failures_total",
        "counter",
        "TLS handshakes that failed, by reason.",
        ("reason",),
        lambda: [((kind,), failures[kind]) for kind in HandshakeFailure if sources],
    )
    metrics.add_rows(
        "tls_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate of a listener expires, in seconds since the epoch.",
        ("listener",),
        lambda: [((name,), each.expires_at.timestamp()) for name, each in sources.items()],
    )
    metrics.add_rows(
        "tls_reloads_total",
        "counter",
        "New keys, certificates or revocation lists that came into force, by listener.",
        ("listener",),
        lambda: [((name,), each.reloads) for name, each in sources.items()],
    )
    metrics.add_rows(
        "tls_reload_failures_total",
        "counter",
        "New keys, certificates or revocation lists that cannot be used, by listener.",
        ("listener",),
        lambda: [((name,), each.failures) for name, each in sources.items()],
    )


def show_authorizer(metrics: Metrics, authorizer: Authorizer) -> None:
    """Add the counts of denied requests, and the size of learning mode's table."""
    metrics.add_rows(
        "authorization_denials_total",
        "counter",
        "Operations that the authorizer denied, by operation and resource type.",
        ("operation", "resource_type"),
        lambda: [
            ((label(operation), label(resource_type)), count)
            for (operation, resource_type), count in authorizer.denials.items()
        ],
    )
    metrics.add_gauge(
        "authorization_decisions", "Decisions in the cache.", lambda: len(authorizer.decisions)
    )
    metrics.add_gauge(
        "authorization_observations",
        "Operations of principals that learning mode keeps.",
        lambda: len(authorizer.observations),
    )


def show_tasks(metrics: Metrics, supervisor: Supervisor) -> None:
    """Add the failures of background tasks."""
    metrics.add_rows(
        "task_failures_total",
        "counter",
        "Unexpected errors of background tasks, by task. Tasks are restarted after them.",
        ("task",),
        lambda: [((name,), count) for name, count in supervisor.failures.items()],
    )


def show_upkeep(metrics: Metrics, stats: UpkeepStats) -> None:
    """Add the counts of retention, flushing and checkpoints."""
    metrics.add_attributes(
        "log",
        "counter",
        stats,
        {
            "flushes": "Logs flushed to stable storage.",
            "checkpoints": "Writes of recovery points, log start offsets and high watermarks.",
            "segments_expired": "Segments deleted by retention or DeleteRecords.",
            "files_removed": "Files and directories removed from disk.",
            "failures": "Background work on logs that failed.",
        },
    )


def show_cleaner(metrics: Metrics, stats: CleanerStats) -> None:
    """Add the counts of compaction."""
    metrics.add_attributes(
        "compaction",
        "counter",
        stats,
        {
            "runs": "Logs compacted.",
            "failures": "Compactions that failed.",
            "bytes_read": "Bytes read by compaction.",
            "bytes_written": "Bytes written by compaction.",
            "records_read": "Records read by compaction.",
            "records_kept": "Records kept by compaction.",
            "tombstones_expired": "Tombstones dropped after delete.retention.ms.",
            "keyless_records": "Records without a key dropped by compaction.",
            "duration_seconds": "Seconds spent on compaction.",
        },
    )
    metrics.add_gauge(
        "compaction_dirty_ratio_max",
        "Largest dirty ratio of a log at the last check.",
        lambda: stats.dirty_ratio_max,
    )
    metrics.add_gauge(
        "compaction_uncleanable_logs",
        "Logs that compaction gave up on.",
        lambda: len(stats.uncleanable),
    )


class Connections:
    """The counts of the gate, as a `ConnectionSource`."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def open(self) -> int:
        return self._gate.connections

    @property
    def accepted(self) -> int:
        return self._gate.counters.accepted

    @property
    def refused(self) -> Mapping[str, int]:
        return self._gate.counters.refused

    @property
    def closed(self) -> Mapping[str, int]:
        return self._gate.counters.closed

    @property
    def request_bytes_in_flight(self) -> int:
        return self._gate.reserved_bytes

    @property
    def throttled_reads(self) -> int:
        return self._gate.counters.memory_waits


def partition_sizes(replicas: Replicas) -> Iterator[PartitionSize]:
    """Yield the size and offsets of each partition."""
    for partition in replicas:
        log = partition.log
        topic, number = partition.topic_partition
        yield PartitionSize(topic, number, log.size_bytes, log.log_start_offset, log.log_end_offset)
