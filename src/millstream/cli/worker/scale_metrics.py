"""The pages and metrics of `worker scale`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from millstream.cli.worker.scale import row_of
from millstream.cli.worker.scale_decision import ScaleDecision
from millstream.cli.worker.status_server import Page
from millstream.cli.worker.worker_metrics import page_of


class ScalePages:
    """The last decision over HTTP. Every page is 503 while there is none."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.decision: ScaleDecision | None = None
        self.problem: str | None = "the group was not observed yet"

    def pages(self) -> dict[str, Callable[[], Page]]:
        """Return the pages by path."""
        return {
            "/": lambda: self._page(self._json),
            "/metrics": lambda: self._page(lambda decision: scale_page(self._group, decision)),
            "/healthz": lambda: self._page(lambda _: Page(b"ok\n")),
        }

    def _page(self, render: Callable[[ScaleDecision], Page]) -> Page:
        if self.problem is not None or self.decision is None:
            return Page(f"{self.problem}\n".encode(), status=503)
        return render(self.decision)

    def _json(self, decision: ScaleDecision) -> Page:
        body = json.dumps(row_of(self._group, decision)) + "\n"
        return Page(body.encode(), "application/json")


def scale_page(group: str, decision: ScaleDecision) -> Page:
    """Return the metrics of a decision."""
    return page_of(list(_families(group, decision)))


def _families(group: str, decision: ScaleDecision) -> Iterator[Metric]:
    rows = {
        "workers": ("Workers that the lag asks for, with hysteresis.", decision.workers),
        "needed": ("Workers that the lag asks for at this moment.", decision.needed),
        "members": ("Members of the group.", decision.members),
        "lag_records": ("Records that the group has not committed.", decision.lag),
        "worker_records_per_second": ("Records per second of one worker.", decision.rate),
        "arriving_records_per_second": ("Records per second that arrive.", decision.arrival_rate),
    }
    for name, (text, value) in rows.items():
        if value is not None:
            family = GaugeMetricFamily(f"millstream_worker_scale_{name}", text, labels=["group"])
            family.add_metric([group], value)
            yield family
