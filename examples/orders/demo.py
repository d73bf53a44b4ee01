"""The example from beginning to end: topics, events, updates of the pipeline, account, proof."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.orders import topics
from examples.orders.audit import Line, Outcome, account, collect
from examples.orders.generator import Recipe, rounds
from examples.orders.ledger import Ledger
from examples.orders.proof import proofs
from millstream.cli.pipeline.pipeline_view import FlowView
from millstream.spark.job.report import Report
from millstream.spark.pipeline.connect_session import connect_sessions
from millstream.spark.pipeline.project import SERVERS_KEY, Project, find
from millstream.spark.pipeline.runner import Pipeline

_HERE = Path(__file__).parent
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: For a JVM that ends before its optimizing compiler pays.
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Outcome
    #: Held against what was generated.
    lines: list[Line]
    #: Held against what the topic `orders` has, by the way that events took.
    proofs: dict[str, Report]

    @property
    def is_good(self) -> bool:
        return all(each.agrees for each in self.lines) and all(
            each.is_ok for each in self.proofs.values()
        )


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
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Each round's events are sent, and the pipeline brought up to date."""
    topics.create(servers)
    project = project_in(folder, servers)
    say("starting Spark")
    config = project.static_config()
    config[_JAVA_OPTIONS] = f"{config[_JAVA_OPTIONS]} {_SHORT_LIVED}"
    with connect_sessions("orders", master=master, config=config) as sessions:
        view = FlowView(lambda line: say(f"  {line}"))
        ledger = _rounds(recipe, servers, Pipeline(sessions, project, view.show), say)
        say("counting what came out, and auditing it")
        with sessions() as spark:
            outcome = collect(spark, servers)
            found = proofs(spark, servers, project.folder / "warehouse")
    return Result(outcome, account(ledger, outcome), found)


def _rounds(recipe: Recipe, servers: str, pipeline: Pipeline, say: Callable[[str], None]) -> Ledger:
    ledger = Ledger()
    for number, (customers, orders) in enumerate(rounds(recipe), start=1):
        topics.send(servers, "customers", customers)
        topics.send(servers, "orders", orders)
        ledger.add(customers, orders)
        say(f"round {number} of {recipe.rounds}: {len(orders):,} events sent")
        start = time.monotonic()
        flows = pipeline.update().flows
        say(f"  {len(flows)} flows up to date after {time.monotonic() - start:.1f} s")
    return ledger
