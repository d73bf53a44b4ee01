"""The queries of the Grafana dashboards, with values for their variables."""

from __future__ import annotations

import json
import tomllib
from typing import NamedTuple

from harness.process.broker_process import wait_until
from harness.process.prometheus_process import PrometheusProcess
from harness.tool.deploy_tool import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "grafana"
DESCRIPTION = tomllib.loads((FOLDER / "dashboards.toml").read_text())
FILES = sorted(FOLDER.glob("*.json"))
WORKERS = "workers"


class Query(NamedTuple):
    dashboard: str
    panel: str
    text: str
    #: Whether the query may have no series in a healthy cluster.
    is_after_event: bool


def queries() -> list[Query]:
    """Return the queries of all dashboards."""
    after_event = _panels_after_event()
    return [
        Query(
            file.stem,
            panel["title"],
            _filled_in(target["expr"]),
            (file.stem, panel["title"]) in after_event,
        )
        for file in FILES
        for panel in json.loads(file.read_text())["panels"]
        for target in panel.get("targets", [])
    ]


def _filled_in(expression: str) -> str:
    # The scrape interval of the tests is a second.
    text = expression.replace("$__rate_interval", "30s")
    for name in DESCRIPTION["variable"]:
        text = text.replace(f'"${name}"', '".*"')
    return text


def _panels_after_event() -> set[tuple[str, str]]:
    return {
        (dashboard["file"], panel["title"])
        for dashboard in DESCRIPTION["dashboard"]
        for row in dashboard["row"]
        for panel in row["panels"]
        if panel.get("after_event", False)
    }


def wait_for_results(prometheus: PrometheusProcess, asked: list[Query]) -> None:
    """Return once every query has series, apart from those on events."""
    missing: list[Query] = []

    def all_have_results() -> bool:
        missing[:] = [
            query
            for query in asked
            if not prometheus.query(query.text) and not query.is_after_event
        ]
        return not missing

    try:
        wait_until(all_have_results, "a result of every query", seconds_max=120.0)
    except AssertionError as error:
        error.add_note("without a result:\n" + "\n".join(str(each) for each in missing))
        raise
