"""Write the Grafana dashboards from deploy/grafana/dashboards.toml; `--check` only compares.

Each dashboard becomes deploy/grafana/FILE.json, which Grafana imports or reads from a folder.
Panels flow from left to right, three in a row, numbers eight in a row.
"""

from __future__ import annotations

import itertools
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
DESCRIPTION: Final = FOLDER / "dashboards.toml"

_COLUMNS: Final = 24
_SIZES: Final = {"timeseries": (8, 8), "stat": (3, 4)}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
#: The JSON model of Grafana 10.4; newer ones read it.
_SCHEMA_VERSION: Final = 39


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the JSON document of each dashboard by its file name."""
    description = tomllib.loads(DESCRIPTION.read_text())
    variables = description["variable"]
    return {
        f"{dashboard['file']}.json": _dashboard(dashboard, variables)
        for dashboard in description["dashboard"]
    }


def _dashboard(dashboard: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    chosen = [_variable(name, variables[name]) for name in dashboard["variables"]]
    return {
        "uid": f"millstream-{dashboard['file']}",
        "title": dashboard["title"],
        "description": dashboard["description"],
        "tags": ["millstream"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [_links()],
        "templating": {"list": [_source_variable(), *chosen]},
        "panels": list(_panels(dashboard["row"])),
    }


def _links() -> dict[str, Any]:
    """Return the links to the other dashboards."""
    return {
        "title": "Millstream",
        "type": "dashboards",
        "tags": ["millstream"],
        "asDropdown": True,
        "keepTime": True,
    }


def _source_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(name: str, variable: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "label": variable["label"],
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": variable["query"], "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    ids = itertools.count(1)
    top = 0
    for row in rows:
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {
            "id": next(ids),
            "type": "row",
            "title": row["title"],
            "gridPos": place,
            "panels": [],
        }
        top += 1
        left = height = 0
        for panel in row["panels"]:
            width, height = _SIZES[panel.get("kind", "timeseries")]
            if left + width > _COLUMNS:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": width, "h": height}
            yield _panel(next(ids), panel, place)
            left += width
        top += height


def _panel(number: int, panel: Mapping[str, Any], place: Mapping[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _SOURCE,
            "expr": query.replace("$rate", "$__rate_interval"),
            "legendFormat": legend,
            "instant": kind == "stat",
            "range": kind != "stat",
        }
        for index, (query, legend) in enumerate(panel["queries"])
    ]
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel.get("description", ""),
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel, kind), "overrides": []},
        "options": _options(kind),
    }


def _defaults(panel: Mapping[str, Any], kind: str) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short")}
    if kind == "stat":
        defaults |= {"color": {"mode": "thresholds"}, "thresholds": _thresholds(panel)}
    else:
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never"}
        if not panel.get("signed", False):
            defaults["min"] = 0
    return defaults


def _thresholds(panel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the colours of a number: green, and red outside of its bounds."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if "red_below" in panel:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel["red_below"]}]
    if "red_above" in panel:
        # Numbers are whole: a step applies from its value on.
        steps.append({"color": "red", "value": panel["red_above"] + 1})
    return {"mode": "absolute", "steps": steps}


def _options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def main(arguments: list[str]) -> int:
    wanted = {
        FOLDER / name: json.dumps(document, indent=2) + "\n"
        for name, document in dashboards().items()
    }
    stale = [
        file.name for file, text in wanted.items() if not file.exists() or file.read_text() != text
    ]
    stale += [file.name for file in FOLDER.glob("*.json") if file not in wanted]
    if arguments == ["--check"]:
        if stale:
            print(f"stale: {', '.join(sorted(stale))}; run scripts/grafana_dashboards.py")
        return 1 if stale else 0
    for file in FOLDER.glob("*.json"):
        file.unlink()
    for file, text in wanted.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
