"""Audits the pipeline with `millstream job audit`: the topic `orders` against each output.

The audit does not know the generated events. It reads the topic `orders` and checks that each
output has the records that belong there, each once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from millstream.spark.job.auditing.audit_job import Question, audit
from millstream.spark.job.report import Report

_ORDER = (
    "from_json(string(value), 'order_id STRING, customer STRING, amount_cents BIGINT,"
    " event_time_ms BIGINT')"
)
_WELL_FORMED = " AND ".join(
    f"coalesce({condition}, false)"
    for condition in (
        "is_valid_utf8(string(value))",
        f"{_ORDER}.order_id IS NOT NULL",
        f"{_ORDER}.customer IS NOT NULL",
        f"{_ORDER}.amount_cents > 0",
        f"{_ORDER}.event_time_ms IS NOT NULL",
    )
)
_IN_TIME = f"timestamp < timestamp_millis({_ORDER}.event_time_ms) + INTERVAL 10 MINUTES"
_BY_ID: Final[dict[str, Any]] = {
    "identity": f"sql:{_ORDER}.order_id",
    "output_identity": "sql:order_id",
}

#: For each kind of event: its output (a table, or a topic ending in .dlq), and the audit.
_AUDITS = {
    "accepted": (
        "orders",
        Question(**_BY_ID, where=f"{_WELL_FORMED} AND {_IN_TIME}", distinct=True),
    ),
    "too late": ("late_orders", Question(**_BY_ID, where=f"{_WELL_FORMED} AND NOT {_IN_TIME}")),
    "malformed": ("orders.dlq", Question(where=f"NOT ({_WELL_FORMED})")),
}


def proofs(spark: Any, servers: str, warehouse: Path) -> dict[str, Report]:
    """Return the report of each audit."""
    return {
        name: audit(
            "orders",
            [output if output.endswith(".dlq") else f"{warehouse}/{output}"],
            question,
            spark=spark,
            bootstrap_servers=servers,
        )
        for name, (output, question) in _AUDITS.items()
    }
