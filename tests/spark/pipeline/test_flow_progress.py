"""The progress of flows, from Spark's messages and reports."""

from __future__ import annotations

import json
from typing import Any

from millstream.spark.error_text import error_sentence, parse_error
from millstream.spark.pipeline.flow_progress import RunProgress


def report(name: str, rows: int, ms: int, *sources: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "numInputRows": rows, "batchDuration": ms, "sources": list(sources)}


def topic(end: dict[str, int], latest: dict[str, int]) -> dict[str, Any]:
    return {"endOffset": json.dumps({"t": end}), "latestOffset": {"t": latest}}


def test_messages_set_the_state_of_flows() -> None:
    progress = RunProgress()
    assert progress.apply_message("Run is RUNNING.") is None
    for message in (
        "Flow spark_catalog.default.orders is QUEUED.",
        "Flow spark_catalog.default.orders is RUNNING.",
        "Flow 'spark_catalog.default.late' has FAILED.\nError: no broker.",
    ):
        progress.apply_message(message)
    assert {name: flow.state for name, flow in progress.flows.items()} == {
        "orders": "running",
        "late": "failed",
    }
    assert [each.name for each in progress.failed] == ["late"]
    assert progress.failed[0].message == "no broker."


def test_a_failed_flow_completes_only_after_a_retry() -> None:
    progress = RunProgress()
    states = []
    for message in ("has FAILED.\nError: no.", "has COMPLETED.", "is RUNNING.", "has COMPLETED."):
        progress.apply_message(f"Flow 'orders' {message}")
        states.append(progress.flows["orders"].state)
    assert states == ["failed", "failed", "running", "completed"]


def test_unfinished_flows_are_stopped_with_the_run() -> None:
    progress = RunProgress()
    for name, state in (("a", "has COMPLETED"), ("b", "is RUNNING"), ("c", "is QUEUED")):
        progress.apply_message(f"Flow '{name}' {state}.")
    progress.stop()
    assert [flow.state for flow in progress.flows.values()] == ["completed", "stopped", "stopped"]


def test_a_flow_that_spark_cannot_resolve_has_failed() -> None:
    progress = RunProgress()
    progress.apply_message("""Failed to resolve flow: 'spark_catalog.default.revenue'.
Error: [UNRESOLVED_COLUMN] A column `euros` cannot be resolved. SQLSTATE: 42703; line 2 pos 7;
'Project ['euros]
+- 'UnresolvedRelation [orders]""")
    progress.apply_message(
        "Failed to resolve flow due to upstream failure: 'to_topic'.\nError: none."
    )
    (failed,) = progress.failed
    assert failed.name == "revenue"
    assert failed.message == (
        "[UNRESOLVED_COLUMN] A column `euros` cannot be resolved (line 2 pos 7)"
    )


def test_only_the_python_error_of_a_message_is_shown() -> None:
    message = """Flow 'a.b.late' has FAILED.
Error: [STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "python_streaming_source_runner.py", line 271, in main
    raise Unavailable("127.0.0.1:9 does not answer")
millstream.spark.error.Unavailable: 127.0.0.1:9 does not answer
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: late [id = 1]
"""
    assert parse_error(message) == ("Unavailable", "127.0.0.1:9 does not answer")
    other = message.replace("millstream.spark.error.Unavailable", "ValueError")
    assert parse_error(other) == ("", "ValueError: 127.0.0.1:9 does not answer")
    short = (
        "Flow 'late' has FAILED.\nError: [STREAM_FAILED] Query terminated with exception: no disk."
    )
    assert error_sentence(short) == "no disk."
    assert (
        error_sentence("[NO_TABLE] There is none. SQLSTATE: 42P01") == "[NO_TABLE] There is none."
    )


def test_rows_and_rate_cover_the_whole_run_and_lag_the_last_batch() -> None:
    progress = RunProgress()
    name = "spark_catalog.default.orders"
    progress.apply_report(
        report(name, 100, 1000, topic({"0": 60, "1": 40}, {"0": 100, "1": 40, "2": 5}))
    )
    flow = progress.apply_report(
        report(name, 300, 1000, topic({"0": 100, "1": 40}, {"0": 110, "1": 40}))
    )
    assert flow is not None
    assert (flow.name, flow.rows, flow.batches, flow.batch_ms) == ("orders", 400, 2, 1000)
    assert flow.rows_per_s == 200
    assert flow.lag == 10


def test_only_topics_have_a_lag() -> None:
    progress = RunProgress()
    files = {"endOffset": '{"logOffset":3}', "latestOffset": None}
    flow = progress.apply_report(report("a", 1, 10, files))
    assert flow is not None
    assert flow.lag is None
    assert progress.apply_report(report("", 1, 10)) is None
