from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkRuntimeError

from millstream.cli.pipeline.pipeline_view import FlowView
from millstream.spark.pipeline import connect_session
from millstream.spark.pipeline.flow_progress import FlowProgress, RunProgress
from millstream.spark.pipeline.pipeline_runner import Pipeline
from millstream.spark.pipeline.update import PipelineError

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_init_prints_the_next_steps(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    made = run("pipeline", "init", str(folder), "-b", "broker:1")
    assert made.code == 0
    assert made.out.splitlines()[0] == str(folder / "spark-pipeline.yml")
    assert "topic create orders -b broker:1" in made.error
    assert "broker:1" in (folder / "spark-pipeline.yml").read_text()
    described = run("pipeline", "init", str(tmp_path / "other"), "--json")
    assert json.loads(described.out)["pipeline"] == "other"
    again = run("pipeline", "init", str(folder))
    assert again.code == 5
    assert "not empty" in again.error


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_folder_without_a_project(run: Run, tmp_path: Path, command: str) -> None:
    failed = run("pipeline", command, str(tmp_path))
    assert failed.code == 3
    assert "millstream pipeline init" in failed.error


def test_a_wrong_project_file_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: a\n")
    failed = run("pipeline", "run", str(tmp_path))
    assert failed.code == 2
    assert "storage" in failed.error


def test_contradicting_options_are_usage_errors(run: Run, tmp_path: Path) -> None:
    run("pipeline", "init", str(tmp_path / "shop"))
    both = ("--master", "local[1]", "--remote", "sc://127.0.0.1:1")
    failed = run("pipeline", "run", str(tmp_path / "shop"), *both)
    assert failed.code == 2
    assert "not both" in failed.error
    failed = run("pipeline", "run", "--full-refresh-all", "--refresh", "orders")
    assert failed.code == 2
    assert "--full-refresh-all" in failed.error


def test_without_spark_the_error_names_the_package(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    failed = run("pipeline", "run", str(tmp_path))
    assert failed.code == 1
    assert 'pip install "millstream[spark]"' in failed.error


@pytest.mark.parametrize(("error", "code"), [("UnknownTopic", 3), ("Unavailable", 4), ("", 1)])
def test_a_failed_run_prints_its_reason_and_the_state_of_each_flow(
    run: Run,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: str,
    code: int,
) -> None:
    def update(self: Pipeline, selection: Any) -> RunProgress:
        self.progress.apply_message("Flow 'orders' is RUNNING.")
        self.progress.apply_message("Flow 'orders' has FAILED.\nError: no luck.")
        raise PipelineError("flow orders: no luck", {error})

    monkeypatch.setattr(
        connect_session, "connect_sessions", lambda *_, **__: contextlib.nullcontext()
    )
    monkeypatch.setattr(Pipeline, "update", update)
    run("pipeline", "init", str(tmp_path / "shop"), "-b", broker)
    failed = run("pipeline", "run", str(tmp_path / "shop"), "--json")
    assert failed.code == code
    assert "error: flow orders: no luck" in failed.error
    summary = json.loads(failed.out)
    assert summary["updates"] == 0
    assert [(each["name"], each["state"]) for each in summary["flows"]] == [("orders", "failed")]


def test_without_a_broker_spark_is_not_started(run: Run, tmp_path: Path) -> None:
    run("pipeline", "init", str(tmp_path / "shop"))
    failed = run("pipeline", "run", str(tmp_path / "shop"), "-b", "127.0.0.1:1,[::1]:1")
    assert failed.code == 4
    assert "no response from 127.0.0.1:1,[::1]:1" in failed.error
    assert "starting Spark" not in failed.error


def test_an_unreachable_spark_connect_server(run: Run, tmp_path: Path) -> None:
    folder = str(tmp_path / "shop")
    run("pipeline", "init", folder)
    failed = run("pipeline", "validate", folder, "--remote", "sc://127.0.0.1:1/;user_id=me")
    assert failed.code == 4
    assert "no response from Spark Connect at sc://127.0.0.1:1" in failed.error
    assert run("pipeline", "validate", folder, "--remote", "spark://127.0.0.1:1").code == 2


def test_without_java_the_error_names_the_version(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(connect_session, "connect_sessions", refuse)
    run("pipeline", "init", str(tmp_path / "shop"))
    failed = run("pipeline", "validate", str(tmp_path / "shop"))
    assert failed.code == 1
    assert "needs Java 17" in failed.error


def test_a_flow_is_printed_when_it_has_changed() -> None:
    said: list[str] = []
    view = FlowView(said.append)
    flow = FlowProgress("orders", "running")
    view.show(flow)
    view.show(flow)
    flow.rows, flow.batches, flow.rows_per_s, flow.batch_ms, flow.lag = 1200, 1, 600.0, 2000, 7
    view.show(flow)
    view.show(FlowProgress("idle", "completed"))
    assert said == [
        "orders: running",
        "orders: running, 1,200 rows, 600 rows/s, last batch 2s, 7 behind",
    ]


def test_rows_of_all_updates_add_up() -> None:
    view = FlowView()
    assert not view
    for rows in (3, 4):
        progress = RunProgress({"orders": FlowProgress("orders", rows=rows, batches=1)})
        view.add(progress)
    (flow,) = view.summary()["flows"]
    assert (flow["rows"], flow["batches"]) == (7, 2)
