"""Runs the whole example: sends events, updates the pipeline, and checks the outcome."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.orders import topics
from examples.orders.audit import Line, Outcome, account, collect
from examples.orders.expected_outcome import ExpectedOutcome
from examples.orders.generator import Recipe, rounds
from examples.orders.proof import proofs
from millstream.cli.pipeline.pipeline_view import FlowView
from millstream.spark.job.report import Report
from millstream.spark.pipeline.connect_session import connect_sessions
from millstream.spark.pipeline.pipeline_runner import Pipeline
from millstream.spark.pipeline.project import SERVERS_KEY, Project, find

_HERE = Path(__file__).parent
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Options for a JVM that is too short-lived for its optimizing compiler.
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of the pipeline and its checks."""

    outcome: Outcome
    #: The outcome compared with the generated events.
    lines: list[Line]
    #: Audits of the topic `orders` against each output.
    proofs: dict[str, Report]

    @property
    def is_good(self) -> bool:
        return all(each.agrees for each in self.lines) and all(
            each.is_ok for each in self.proofs.values()
        )


def project_in(folder: Path, servers: str) -> Project:
    """Copy the pipeline to `folder`, which also keeps its tables and checkpoints."""
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
    """Send the events of each round and update the pipeline after each."""
    topics.create(servers)
    project = project_in(folder, servers)
    say("starting Spark")
    config = project.static_config()
    config[_JAVA_OPTIONS] = f"{config[_JAVA_OPTIONS]} {_SHORT_LIVED}"
    with connect_sessions("orders", master=master, config=config) as sessions:
        view = FlowView(lambda line: say(f"  {line}"))
        expected = _rounds(recipe, servers, Pipeline(sessions, project, view.show), say)
        say("collecting and auditing the outcome")
        with sessions() as spark:
            outcome = collect(spark, servers)
            found = proofs(spark, servers, project.folder / "warehouse")
    return Result(outcome, account(expected, outcome), found)


def _rounds(
    recipe: Recipe, servers: str, pipeline: Pipeline, say: Callable[[str], None]
) -> ExpectedOutcome:
    expected = ExpectedOutcome()
    for number, (customers, orders) in enumerate(rounds(recipe), start=1):
        topics.send(servers, "customers", customers)
        topics.send(servers, "orders", orders)
        expected.add(customers, orders)
        say(f"round {number} of {recipe.rounds}: {len(orders):,} events sent")
        start = time.monotonic()
        flows = pipeline.update().flows
        say(f"  {len(flows)} flows up to date after {time.monotonic() - start:.1f} s")
    return expected
