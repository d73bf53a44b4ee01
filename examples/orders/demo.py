"""The example from beginning to end: topics, events, updates of the pipeline, account."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.orders import topics
from examples.orders.audit import Line, Outcome, account, collect
from examples.orders.generator import Recipe, rounds
from examples.orders.ledger import Ledger
from millstream.spark.pipeline.progress import FlowProgress
from millstream.spark.pipeline.project import SERVERS_KEY, Project, find
from millstream.spark.pipeline.run import Pipeline
from millstream.spark.pipeline.session import connect_session

_HERE = Path(__file__).parent


def project_in(folder: Path, servers: str) -> Project:
    """A copy of the pipeline, whose tables and checkpoints stay in `folder`."""
    target = folder / "pipeline"
    shutil.copytree(_HERE / "transformations", target / "transformations")
    shutil.copy(_HERE / "spark-pipeline.yml", target)
    return find(target, {SERVERS_KEY: servers})


def run(
    recipe: Recipe,
    servers: str,
    folder: Path,
    *,
    master: str | None = None,
    config: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Outcome, list[Line]]:
    """Each round's events are sent, and the pipeline brought up to date."""
    topics.create(servers)
    project = project_in(folder, servers)
    say("starting Spark")
    settings = project.static_config() | (config or {})
    with connect_session("orders", master=master, config=settings) as spark:
        pipeline = Pipeline(spark, project, lambda flow: _tell(flow, say))
        ledger = _rounds(recipe, servers, pipeline, say)
        outcome = collect(spark, servers)
    return outcome, account(ledger, outcome)


def _tell(flow: FlowProgress, say: Callable[[str], None]) -> None:
    if flow.state == "failed":
        say(f"  {flow.name} failed: {flow.message}")
    elif flow.state == "completed" and flow.batches:
        say(f"  {flow.name}: {flow.rows:,} rows")


def _rounds(recipe: Recipe, servers: str, pipeline: Pipeline, say: Callable[[str], None]) -> Ledger:
    ledger = Ledger()
    for number, (customers, orders) in enumerate(rounds(recipe), start=1):
        topics.send(servers, "customers", customers)
        topics.send(servers, "orders", orders)
        ledger.add(customers, orders)
        start = time.monotonic()
        flows: dict[str, Any] = pipeline.update().flows
        took = time.monotonic() - start
        rows = sum(each.rows for each in flows.values())
        say(
            f"round {number} of {recipe.rounds}: {len(orders):,} events sent,"
            f" {len(flows)} flows up to date after {took:.1f} s ({rows / took:,.0f} rows/s)"
        )
    return ledger
