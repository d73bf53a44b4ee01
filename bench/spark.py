"""`python -m bench.spark`: compares `format("millstream")` with Spark's own Kafka connector.

One Spark, one Apache Kafka and one Millstream run together on this machine. Measurements alternate
between the brokers (A B, B A, A B, ...), so that a ratio compares neighbours in time. Spark's
connector uses Kafka, and Millstream's source and sink use Millstream, with the same records.
Millstream's sink writes exactly once; the connector supports at least once only.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.console import Console

from bench.brokers import JARS, REPOSITORY, Kafka, Millstream
from bench.report import Report
from bench.spark_rows import BARS, FULL, QUICK, Case, Data, Peer, Plan, fill, sections
from millstream.env.termination import exit_at_sigterm
from millstream.spark.session import spark_session

CONNECTOR = REPOSITORY / ".cache" / "spark-connector"
RESULTS = REPOSITORY / "bench" / "results"

console = Console(width=None if sys.stdout.isatty() else 160)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, help="measurements of each connector (default: 3, with --quick 1)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run with little data; the start of a query then dominates the results",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="cases to run (repeatable)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of all cases and exit")
    parser.add_argument("--master", default="local[*]", help="Spark's master")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a Spark setting for both connectors (repeatable)",
    )
    parser.add_argument("--out", type=Path, help="JSON file (default: a new one in bench/results)")
    return parser.parse_args()


def chosen(patterns: list[str]) -> list[tuple[Data | None, list[Case]]]:
    """Return the sections with the cases whose name contains or matches a pattern."""

    def is_chosen(case: Case) -> bool:
        return not patterns or any(
            pattern.lower() in case.name.lower() or fnmatch.fnmatch(case.name, pattern)
            for pattern in patterns
        )

    found = [(data, [case for case in cases if is_chosen(case)]) for data, cases in sections()]
    return [(data, cases) for data, cases in found if cases]


@contextmanager
def peers(master: str, settings: list[str]) -> Iterator[list[Peer]]:
    """Run both brokers and Spark, with `settings` like `name=value`."""
    brokers = [Kafka(), Millstream()]
    spark = None
    try:
        for broker in brokers:
            broker.start()
        config = {
            "spark.jars": ",".join(map(str, sorted(CONNECTOR.glob("*.jar")))),
            "spark.driver.memory": "3g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(os.cpu_count()),
            **dict(setting.split("=", 1) for setting in settings),
        }
        spark = spark_session("millstream-bench", master=master, config=config)
        yield [
            Peer("kafka", "kafka", brokers[0], spark),
            Peer("millstream", "millstream", brokers[1], spark),
        ]
    finally:
        if spark is not None:
            spark.stop()
        for broker in brokers:
            broker.remove()


def run_case(case: Case, order: list[Peer], plan: Plan, report: Report) -> None:
    for peer in order:
        try:
            figures = case.measure(peer, plan)
        except (RuntimeError, OSError, KafkaException, PySparkException, Py4JError) as error:
            report.failures.append(f"{peer.name}, {case.name}: {error}")
            console.print(f"  [red]{case.name} failed[/red]: {str(error)[:600]}", highlight=False)
            continue
        report.add(peer.name, figures)
        shown = ", ".join(f"{figure.value:,.4g} {figure.unit}" for figure in figures)
        console.print(f"  {case.name}, {peer.name}: {shown}", highlight=False)


def measure(options: argparse.Namespace) -> int:
    repeats = options.repeats or (1 if options.quick else 3)
    plan = QUICK if options.quick else FULL
    conf = " ".join(options.conf)
    report = Report({"repeats": repeats, "conf": conf, **dataclasses.asdict(plan)}, BARS)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / ".gitignore").write_text("*\n")
    out = options.out or RESULTS / f"spark-{time.strftime('%Y%m%d-%H%M%S')}.json"
    with peers(options.master, options.conf) as both:
        for data, cases in chosen(options.only):
            console.print(f"[bold]{data.topic if data else 'no data of its own'}[/bold]")
            if data is not None:
                for peer in both:
                    fill(peer, data, plan)
            for case in cases:
                run_case(case, both, plan.warm_up(), Report({}))
                for repeat in range(repeats):
                    run_case(case, both[:: 1 if repeat % 2 == 0 else -1], plan, report)
            if data is not None:
                for peer in both:
                    peer.delete(data.topic)
            report.write(out)
    report.print(console)
    console.print(f"JSON: {out}")
    return 1 if report.failures else 0


def main() -> int:
    options = parse_options()
    exit_at_sigterm()
    if options.list:
        for _, cases in chosen(options.only):
            console.print("\n".join(case.name for case in cases), highlight=False)
        return 0
    subprocess.run([sys.executable, str(REPOSITORY / "scripts" / "setup-test-tools")], check=True)
    if not (JARS.is_dir() and CONNECTOR.is_dir()):
        console.print(
            "jars of Kafka or of Spark's connector are missing; .cache/tools.json has the reason"
        )
        return 3
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
