"""The metrics of the audit trail."""

from __future__ import annotations

from millstream.broker.audit.audit_queue import AuditQueue
from millstream.broker.audit.audit_writer import AuditWriter
from millstream.broker.metrics.broker_metrics import Metrics


def show_audit(metrics: Metrics, queue: AuditQueue, writer: AuditWriter) -> None:
    """Add the counts of events that were recorded, dropped and not written."""
    metrics.add_counter(
        "audit_events_total", "Events recorded in the audit trail.", lambda: queue.recorded
    )
    metrics.add_counter(
        "audit_events_dropped_total",
        "Audit events lost because too many waited to be written.",
        lambda: queue.dropped,
    )
    metrics.add_counter(
        "audit_write_failures_total",
        "Failed writes to the audit topic or file. Writes to the topic are retried.",
        lambda: writer.failures,
    )
    metrics.add_gauge(
        "audit_queued_events", "Audit events that wait to be written.", lambda: len(queue)
    )
