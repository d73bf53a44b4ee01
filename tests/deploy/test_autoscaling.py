"""The examples for KEDA and Kubernetes' autoscaler name what the commands accept and serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from millstream.cli.main import build
from millstream.cli.worker.scale import row_of
from millstream.cli.worker.scale_decision import ScaleDecision
from millstream.cli.worker.scale_metrics import scale_page

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "autoscaling"
DECISION = ScaleDecision(3, 2, 1, 90, 1.5, 2.5)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def arguments(name: str) -> list[str]:
    [container] = documents(name)[0]["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


@pytest.mark.parametrize("name", ["scaler.yaml", "workers.yaml"])
def test_the_commands_have_these_options(name: str) -> None:
    worker, command, *rest = arguments(name)
    group: Any = get_command(build())
    found = group.commands[worker].commands[command]
    # Raises for an unknown option, and runs nothing.
    context = found.make_context(command, list(rest))
    assert context.params.get("group", "shipping") == "shipping"


def test_keda_reads_a_value_that_the_scaler_serves() -> None:
    [scaled] = documents("keda.yaml")
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["valueLocation"] in row_of("shipping", DECISION)
    service = documents("scaler.yaml")[1]
    port = service["spec"]["ports"][0]["port"]
    assert trigger["metadata"]["url"] == f"http://{service['metadata']['name']}:{port}/"
    assert f"--listen=:{port}" in arguments("scaler.yaml")


@pytest.mark.parametrize("name", ["keda.yaml", "hpa.yaml"])
def test_the_metric_exists_and_the_target_is_the_deployment(name: str) -> None:
    text = scale_page("shipping", DECISION).body.decode()
    assert 'millstream_worker_scale_workers{group="shipping"} 3.0\n' in text
    assert "millstream_worker_scale_workers{" in (FOLDER / name).read_text()
    [scaler] = documents(name)
    deployment = documents("workers.yaml")[0]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_the_autoscaler_uses_the_metric() -> None:
    [scaler] = documents("hpa.yaml")
    [metric] = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "millstream_worker_scale_workers"
    assert metric["external"]["metric"]["selector"] == {"matchLabels": {"group": "shipping"}}
