"""How the flows of a run are doing. Pure: Spark's messages and reports in, figures out.

A flow is queued, starting, running, and then completed, failed, skipped, excluded or stopped, as
Spark names it. Rows, speed, batch time and lag are of streaming flows; lag is how many records of
its topics a flow has not read.
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
_DONE: Final = frozenset({"completed", "failed", "skipped", "excluded", "stopped"})


@dataclass(slots=True)
class FlowProgress:
    name: str
    state: str = "queued"
    rows: int = 0
    batches: int = 0
    rows_per_s: float | None = None
    batch_ms: int | None = None
    lag: int | None = None
    #: Why it failed, if it did, and the class of what was raised, where that is Millstream's own.
    message: str = ""
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class RunProgress:
    """All flows, in the order in which they were first heard of."""

    flows: dict[str, FlowProgress] = field(default_factory=dict)
    #: Busy milliseconds by flow, from which its speed is told.
    _busy_ms: dict[str, int] = field(default_factory=dict)

    def hear(self, message: str) -> FlowProgress | None:
        """What Spark says about the run; the flow, if it is about one."""
        if unresolved := _UNRESOLVED.match(message):
            name, state = unresolved[1], "failed"
        elif match := _FLOW.match(message):
            name, state = match[1], match[2].lower()
        else:
            return None
        flow = self._flow(name)
        if (flow.state, state) == ("failed", "completed"):
            # Spark says so of every query that ends; one that is tried again is running first.
            return None
        flow.state = state
        flow.error, flow.message = parse_error(message) if state == "failed" else ("", "")
        return flow

    def report(self, progress: Mapping[str, Any]) -> FlowProgress | None:
        """One micro-batch, as Spark's StreamingQueryProgress has it in JSON."""
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
        """The run was stopped, and with it what was not done."""
        for flow in self.flows.values():
            if flow.state not in _DONE:
                flow.state = "stopped"

    def _flow(self, name: str) -> FlowProgress:
        short = name.rpartition(".")[2].strip("`")
        return self.flows.setdefault(short, FlowProgress(short))


def _lag(source: Mapping[str, Any]) -> int | None:
    """How far a source's end is ahead; None for sources that are not topics."""
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if ends is None or latest is None:
        return None
    return sum(
        max(0, offset - ends.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


def _offsets(value: Any) -> dict[str, dict[str, int]] | None:
    """Offsets by topic and partition, where `value` is that."""
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
