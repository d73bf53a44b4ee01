"""The example on the command line, with a broker of its own."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from examples.orders import chart
from examples.orders.demo import run
from examples.orders.generator import Recipe
from millstream.testing.broker import LocalBroker


def main() -> int:
    start = time.monotonic()
    given = _arguments()
    recipe = Recipe(seed=given.seed, rounds=given.rounds, events=given.events)
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="orders-") as name:
        folder = Path(name)
        with LocalBroker(folder / "broker") as broker:
            print(f"broker on {broker.bootstrap_servers}")
            outcome, lines = run(
                recipe, broker.bootstrap_servers, folder, master=given.master, say=_say
            )
    print(f"\n{chart.text(outcome.revenue_topic)}\n")
    chart.picture(outcome.revenue_topic, lines, given.picture)
    print(f"{'':28}{'expected':>10}{'found':>10}")
    for line in lines:
        mark = "" if line.agrees else "   DIFFERENT"
        print(f"{line.name:28}{line.expected:>10,}{line.found:>10,}{mark}")
    total = sum(line.found for line in lines[:4])
    good = all(line.agrees for line in lines)
    print(f"{'events':28}{recipe.sent:>10,}{total:>10,}")
    print(f"\nthe account {'adds up' if good else 'DOES NOT ADD UP'}; picture: {given.picture}")
    print(f"done in {time.monotonic() - start:.0f} s")
    return 0 if good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    parser.add_argument("--events", type=int, default=Recipe.events)
    parser.add_argument("--rounds", type=int, default=Recipe.rounds)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--master", help="where Spark runs; local[*] by default")
    parser.add_argument("--picture", type=Path, default=Path("build/orders.png"))
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
