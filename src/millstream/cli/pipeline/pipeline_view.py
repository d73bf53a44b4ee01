"""The flows of a run on the terminal: a line for each change, and a table at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.cli.support.terminal import counted, format_duration, note, print_table

if TYPE_CHECKING:
    from millstream.spark.pipeline.flow_progress import FlowProgress, RunProgress

_QUIET = frozenset({"queued", "starting", "planning", "excluded"})


class FlowView:
    """Prints changes of flows. It does not repeat the last line of a flow."""

    def __init__(self, say: Callable[[str], None] = note) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._last_lines: dict[str, str] = {}
        #: The sums of rows and batches over all updates; other values are those of the last update.
        self._flows: dict[str, dict[str, Any]] = {}
        #: The number of completed updates.
        self.updates = 0

    def show(self, flow: FlowProgress) -> None:
        text = line(flow)
        # Spark also reports a failed query as completed.
        is_quiet = flow.state in _QUIET or (flow.state == "completed" and not flow.batches)
        with self._lock:
            if is_quiet or self._last_lines.get(flow.name) == text:
                return
            self._last_lines[flow.name] = text
        self._say(text)

    def add(self, progress: RunProgress) -> None:
        """Add the progress of a finished update."""
        for name, flow in progress.flows.items():
            known, now = self._flows.get(name, {}), flow.as_dict()
            for figure in ("rows", "batches"):
                now[figure] += known.get(figure, 0)
            self._flows[name] = now

    def __bool__(self) -> bool:
        return bool(self._flows)

    def summary(self) -> dict[str, Any]:
        return {"updates": self.updates, "flows": list(self._flows.values())}

    def print(self) -> None:
        headings = ["FLOW", "STATE", "ROWS", "BATCHES", "ROWS/S", "BATCH", "LAG"]
        rows = [
            (
                flow["name"],
                flow["state"],
                *((f"{flow['rows']:,}", flow["batches"]) if flow["batches"] else ("-", "-")),
                _speed(flow["rows_per_s"]),
                _duration(flow["batch_ms"]),
                "-" if flow["lag"] is None else f"{flow['lag']:,}",
            )
            for flow in self._flows.values()
        ]
        print_table(headings, rows, right=headings[2:])


def line(flow: FlowProgress) -> str:
    """Return a flow's progress in one line."""
    if flow.state == "failed":
        return f"{flow.name}: failed, {flow.message}"
    if not flow.batches:
        return f"{flow.name}: {flow.state}"
    lag = "" if flow.lag is None else f", {flow.lag:,} behind"
    return (
        f"{flow.name}: {flow.state}, {counted(flow.rows, 'row')}, {_speed(flow.rows_per_s)} rows/s,"
        f" last batch {_duration(flow.batch_ms)}{lag}"
    )


def _speed(rows_per_s: float | None) -> str:
    if rows_per_s is None:
        return "-"
    return f"{rows_per_s:,.0f}" if rows_per_s >= 10 else f"{rows_per_s:.1f}"


def _duration(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else format_duration(milliseconds / 1000)
