"""The progress of the flows of an update, from Spark's messages and reports. Pure.

A flow is queued, starting, running, and then completed, failed, skipped, excluded or stopped; these
are Spark's names. Only streaming flows have rows, rate, batch time and lag. Lag is the number of
unread records of a flow's topics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from millstream.spark.error_text import parse_error

_FLOW: Final = re.compile(r"^Flow '?([^\s']+)'? (?:is|has) (?:been )?([A-Za-z]+)")
_UNRESOLVED: Final = re.compile(r"^Failed to resolve flow: '?([^\s']+?)'?\.?\s")
_FINAL_STATES: Final = frozenset({"completed", "failed", "skipped", "excluded", "stopped"})


@dataclass(slots=True)
class FlowProgress:
    """The state and the measures of one flow."""

    name: str
    state: str = "queued"
    rows: int = 0
    batches: int = 0
    rows_per_s: float | None = None
    batch_ms: int | None = None
    lag: int | None = None
    #: Why the flow failed, and the class of the error if it is one of Millstream.
    message: str = ""
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class RunProgress:
    """All flows, in the order of their first message."""

    flows: dict[str, FlowProgress] = field(default_factory=dict)
    #: The total batch time of each flow, for its rate.
    _busy_ms: dict[str, int] = field(default_factory=dict)

    def apply_message(self, message: str) -> FlowProgress | None:
        """Apply a message of Spark. Return the flow that it is about, if any."""
        if unresolved := _UNRESOLVED.match(message):
            name, state = unresolved[1], "failed"
        elif match := _FLOW.match(message):
            name, state = match[1], match[2].lower()
        else:
            return None
        flow = self._flow(name)
        if (flow.state, state) == ("failed", "completed"):
            # Spark reports every ended query as completed. A retried flow is running first.
            return None
        flow.state = state
        flow.error, flow.message = parse_error(message) if state == "failed" else ("", "")
        return flow

    def apply_report(self, progress: Mapping[str, Any]) -> FlowProgress | None:
        """Apply the report of one micro-batch: the JSON of Spark's StreamingQueryProgress."""
        name = progress.get("name")
        if not name:
            return None
        flow = self._flow(name)
        flow.batches += 1
        flow.rows += progress["numInputRows"]
        flow.batch_ms = progress["batchDuration"]
        busy = self._busy_ms[flow.name] = self._busy_ms.get(flow.name, 0) + flow.batch_ms
        flow.rows_per_s = flow.rows / busy * 1000 if busy else None
        lags = [lag for source in progress["sources"] if (lag := _lag(source)) is not None]
        flow.lag = sum(lags) if lags else None
        return flow

    @property
    def failed(self) -> list[FlowProgress]:
        return [each for each in self.flows.values() if each.state == "failed"]

    def stop(self) -> None:
        """Mark all unfinished flows as stopped."""
        for flow in self.flows.values():
            if flow.state not in _FINAL_STATES:
                flow.state = "stopped"

    def _flow(self, name: str) -> FlowProgress:
        short = name.rpartition(".")[2].strip("`")
        return self.flows.setdefault(short, FlowProgress(short))


def _lag(source: Mapping[str, Any]) -> int | None:
    """Return the unread records of a source, or None if it does not read topics."""
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if ends is None or latest is None:
        return None
    return sum(
        max(0, offset - ends.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


def _offsets(value: Any) -> dict[str, dict[str, int]] | None:
    """Return offsets by topic and partition, or None if `value` has another form."""
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError:
            return None
    if not isinstance(found, dict) or not found:
        return None
    well_formed = all(
        isinstance(partitions, dict)
        and all(isinstance(offset, int) for offset in partitions.values())
        for partitions in found.values()
    )
    return found if well_formed else None
