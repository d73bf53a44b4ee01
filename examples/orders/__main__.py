"""Runs the example from the command line, with its own broker."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from examples.orders import chart
from examples.orders.demo import Result, run
from examples.orders.generator import Recipe
from millstream.testing.broker import LocalBroker

_START = time.monotonic()
_PROOF = ("expected", "matched", "missing", "duplicate", "unexpected")


def main() -> int:
    given = _arguments()
    recipe = Recipe(seed=given.seed, rounds=given.rounds, events=given.events)
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="orders-") as name:
        folder = Path(name)
        with LocalBroker(folder / "broker") as broker:
            _say(f"broker on {broker.bootstrap_servers}")
            result = run(recipe, broker.bootstrap_servers, folder, master=given.master, say=_say)
    _print(result, recipe)
    chart.picture(result, recipe, given.picture)
    verdict = "adds up" if result.is_good else "DOES NOT ADD UP"
    print(f"\nthe account {verdict}; picture: {given.picture}")
    print(f"done in {time.monotonic() - _START:.0f} s{_since(given.begun)}")
    return 0 if result.is_good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    parser.add_argument("--events", type=int, default=Recipe.events)
    parser.add_argument("--rounds", type=int, default=Recipe.rounds)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--master", help="where Spark runs; local[*] by default")
    parser.add_argument("--picture", type=Path, default=Path("build/orders.png"))
    parser.add_argument(
        "--begun", type=float, metavar="SECONDS", help="when set-up began, since 1970"
    )
    return parser.parse_args()


def _since(begun: float | None) -> str:
    return "" if begun is None else f", {time.time() - begun:.0f} s after set-up began"


def _say(line: str) -> None:
    print(f"{time.monotonic() - _START:4.0f} s  {line}", flush=True)


def _print(result: Result, recipe: Recipe) -> None:
    print(f"\n{chart.text(result.outcome.revenue_topic)}\n")
    print(f"{'against what was generated':28}{'expected':>12}{'found':>12}")
    for line in result.lines:
        mark = "" if line.agrees else "   DIFFERENT"
        print(f"{line.name:28}{line.expected:>12,}{line.found:>12,}{mark}")
    total = sum(line.found for line in result.lines[:4])
    print(f"{'events':28}{recipe.events:>12,}{total:>12,}")
    print(f"\n{'against the topic (audit)':28}{''.join(f'{each:>12}' for each in _PROOF)}")
    for name, report in result.proofs.items():
        mark = "" if report.is_ok else "   NOT EXACTLY ONCE"
        print(f"{name:28}{''.join(f'{report.facts[each]:>12,}' for each in _PROOF)}{mark}")


if __name__ == "__main__":
    sys.exit(main())
