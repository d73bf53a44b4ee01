"""The alert on background tasks, evaluated by Prometheus."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from harness.process.prometheus_process import require_prometheus

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
ALERT = "MillstreamTaskFailures"


def test_the_alert_fires_for_a_failed_task_with_and_without_earlier_samples(tmp_path: Path) -> None:
    require_prometheus()

    def series(task: str, values: str) -> dict[str, str]:
        labels = f'task="{task}",instance="b1",job="millstream"'
        return {"series": f"millstream_task_failures_total{{{labels}}}", "values": values}

    (rule,) = [
        rule
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if rule.get("alert") == ALERT
    ]

    def firing(task: str) -> dict[str, object]:
        texts = {
            key: text.replace("{{ $labels.task }}", task).replace("{{ $labels.instance }}", "b1")
            for key, text in rule["annotations"].items()
        }
        labels = {"task": task, "instance": "b1", "job": "millstream", **rule["labels"]}
        return {"exp_labels": labels, "exp_annotations": texts}

    test = {
        "interval": "1m",
        "input_series": [
            series("healthy", "0x60"),
            series("controller", "0x19 1x40"),
            series("isr-change", "_x19 1x40"),
            series("failed long ago", "3x60"),
        ],
        "alert_rule_test": [
            {"eval_time": "18m", "alertname": ALERT, "exp_alerts": []},
            {
                "eval_time": "22m",
                "alertname": ALERT,
                "exp_alerts": [firing("controller"), firing("isr-change")],
            },
            {"eval_time": "45m", "alertname": ALERT, "exp_alerts": []},
        ],
    }
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(document))
    result = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
