"""`python -m bench`: measures Millstream and Apache Kafka in turns.

It runs one broker of each, or with --cluster three brokers of each with three replicas. For each
repeat and section it starts, warms up, measures and removes one target, then the other. The order
changes with every repeat (A B, B A, A B, ...).
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from rich.console import Console

from bench import api_versions, cluster_rows, handshake_rows, rows
from bench.brokers import BROKERS, JARS, REPOSITORY, Baseline, Kafka, Millstream, Target
from bench.case import FULL, QUICK, Case, Plan, Section, Suite
from bench.report import Report
from bench.secure_brokers import SECURE_BROKERS
from millstream.env.termination import exit_at_sigterm

RESULTS = REPOSITORY / "bench" / "results"
JOIN_GROUP = 11

# A table in a log file must not be wrapped at 80 columns.
console = Console(width=None if sys.stdout.isatty() else 160)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, help="measurements of each broker (default: 3, with --quick 1)"
    )
    parser.add_argument("--cluster", action="store_true", help="measure clusters of three brokers")
    parser.add_argument(
        "--secure", action="store_true", help="measure with TLS, SCRAM-SHA-256 and ACLs"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run with little data, in a few minutes"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="cases to run (repeatable)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of all cases and exit")
    parser.add_argument(
        "--brokers",
        help="brokers to measure, in order (default: kafka,millstream, or baseline,millstream)",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="CHECKOUT",
        help="compare with Millstream of this checkout, which has a .venv, instead of Kafka",
    )
    parser.add_argument("--out", type=Path, help="JSON file (default: a new one in bench/results)")
    parser.add_argument("--serve", choices=BROKERS, help="only run this broker until interrupted")
    parser.add_argument("--port", type=int, default=0, help="the port for --serve")
    return parser.parse_args()


def chosen_suite(options: argparse.Namespace) -> Suite:
    if options.cluster:
        return cluster_rows.suite()
    if options.secure:
        # The simulated members of the section about groups cannot log in.
        sections = [section for section in rows.sections() if section.name != "groups"]
        return Suite(SECURE_BROKERS, [*sections, handshake_rows.section()], rows.warm_up)
    return Suite(BROKERS, rows.sections(), rows.warm_up)


def chosen_sections(suite: Suite, patterns: list[str]) -> list[Section]:
    """Return the sections with the cases whose name contains or matches a pattern."""

    def is_chosen(case: Case) -> bool:
        return not patterns or any(
            pattern.lower() in case.name.lower() or fnmatch.fnmatch(case.name, pattern)
            for pattern in patterns
        )

    chosen = [
        section._replace(cases=[case for case in section.cases if is_chosen(case)])
        for section in suite.sections
    ]
    return [section for section in chosen if section.cases]


def have_groups(targets: Mapping[str, Callable[[], Any]], names: list[str]) -> bool:
    """Whether every broker supports JoinGroup. It starts each once, which also tests the start."""
    found = []
    for name in names:
        broker = targets[name]()
        try:
            broker.start()
            found.append(JOIN_GROUP in api_versions.ask(broker.plain_port))
        finally:
            broker.remove()
    return all(found)


def run_section(suite: Suite, section: Section, broker: Target, plan: Plan, report: Report) -> None:
    if section.is_running:
        broker.start()
        suite.warm_up(broker, plan)
    for case in section.cases:
        begin = time.monotonic()
        try:
            figures = case.measure(broker, plan)
        except (RuntimeError, OSError, KafkaException, subprocess.TimeoutExpired) as error:
            report.failures.append(f"{broker.name}, {case.name}: {error}")
            console.print(f"  [red]{case.name} failed[/red]: {str(error)[:300]}", highlight=False)
            continue
        report.add(broker.name, figures)
        first = figures[0]
        took = time.monotonic() - begin
        console.print(
            f"  {case.name}: {first.value:,.4g} {first.unit} ({took:.0f} s)", highlight=False
        )


def measure(options: argparse.Namespace) -> int:
    base = Kafka.name if options.baseline is None else Baseline.name
    names = (options.brokers or f"{base},{Millstream.name}").split(",")
    repeats = options.repeats or (1 if options.quick else 3)
    plan = QUICK if options.quick else FULL
    suite = chosen_suite(options)
    if not options.cluster:
        plan = dataclasses.replace(plan, groups=have_groups(suite.targets, names))
    settings = {
        "repeats": repeats,
        "brokers": names,
        "cluster": options.cluster,
        "secure": options.secure,
    }
    report = Report({**settings, **dataclasses.asdict(plan)}, suite.bars)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / ".gitignore").write_text("*\n")
    out = options.out or RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    sections = chosen_sections(suite, options.only)
    for repeat in range(repeats):
        order = names if repeat % 2 == 0 else names[::-1]
        for section in sections:
            for name in order:
                console.print(
                    f"[bold]repeat {repeat + 1} of {repeats}, {section.name}, {name}[/bold]"
                )
                broker = suite.targets[name]()
                try:
                    run_section(suite, section, broker, plan, report)
                finally:
                    broker.remove()
        report.write(out)
    report.print(console)
    console.print(f"JSON: {out}")
    return 1 if report.failures else 0


def serve(name: str, port: int) -> int:
    """Run one broker in the foreground, for manual tests against it."""
    broker = BROKERS[name](port)
    try:
        broker.start()
        console.print(f"{name} listens on {broker.bootstrap}; its folder is {broker.folder}")
        return broker.server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        broker.remove()


def main() -> int:
    options = parse_options()
    # SIGTERM must not leave brokers running.
    exit_at_sigterm()
    if options.list:
        for section in chosen_sections(chosen_suite(options), options.only):
            console.print("\n".join(case.name for case in section.cases), highlight=False)
        return 0
    if options.secure and (options.cluster or options.baseline is not None):
        console.print("--secure measures one broker of each kind, without --cluster and --baseline")
        return 2
    if options.baseline is not None:
        Baseline.python = str(options.baseline.resolve() / ".venv" / "bin" / "python")
    subprocess.run([sys.executable, str(REPOSITORY / "scripts" / "setup-test-tools")], check=True)
    if not JARS.is_dir():
        console.print("Apache Kafka's jars are missing; .cache/tools.json has the reason")
        return 3
    if options.serve:
        return serve(options.serve, options.port)
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
