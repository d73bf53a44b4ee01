"""Runs a simulated cluster with the faults of one or more seeds.

Each batch of seeds runs in a forked process, so that memory of dead brokers is freed with it. The
hash seed of Python is fixed, because brokers iterate over collections in hash order: a seed has
the same result on every machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

from sim.planted import PLANTED
from sim.run import Outcome, run_seed

_BATCH = 25
_HASHES = {"PYTHONHASHSEED": "0"}


def _run_batch(seeds: list[int]) -> list[Outcome]:
    """Run seeds in a child process. Stop after the first that fails."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        gc.disable()
        with os.fdopen(sink, "w") as pipe:
            for seed in seeds:
                try:
                    outcome = run_seed(seed)
                except BaseException as error:  # noqa: BLE001 - reported with its seed
                    outcome = Outcome(seed, 0, [f"the run itself failed: {error!r}"], 0, 0.0)
                pipe.write(json.dumps(asdict(outcome)) + "\n")
                if outcome.violations:
                    break
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as pipe:
        outcomes = [Outcome(**json.loads(line)) for line in pipe]
    os.waitpid(child, 0)
    return outcomes


def _batches(start: int, end: int | None) -> Iterator[list[int]]:
    while end is None or start < end:
        stop = start + _BATCH if end is None else min(start + _BATCH, end)
        yield list(range(start, stop))
        start = stop


def _show(outcome: Outcome, plant: str | None) -> None:
    planted = f" --plant {plant}" if plant else ""
    print(f"seed {outcome.seed} FAILED:")
    for violation in outcome.violations[:10]:
        print(f"  {violation}")
    print(f"replay: make sim ARGS='--seed {outcome.seed}{planted} --trace'", flush=True)


def _replay(seed: int, plant: str | None, shows_trace: bool) -> int:
    outcome = run_seed(seed, keeps_lines=shows_trace)
    for line in outcome.lines:
        print(line)
    print(
        f"seed {seed}: digest {outcome.digest:08x}, {outcome.acknowledged} records acknowledged,"
        f" {outcome.virtual_s:.1f} s of virtual time"
    )
    if outcome.violations:
        _show(outcome, plant)
    return 1 if outcome.violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim", description=__doc__)
    parser.add_argument(
        "--seed", type=int, nargs="+", help="run these seeds and print their results"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed: print all events")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, help="number of seeds (default: run until stopped)")
    parser.add_argument("--keep-going", action="store_true", help="continue after a failure")
    parser.add_argument("--plant", choices=sorted(PLANTED), help="plant this bug in the broker")
    parser.add_argument("--log", default="CRITICAL", help="log level of the brokers")
    options = parser.parse_args()
    logging.basicConfig(level=options.log)
    if options.plant:
        PLANTED[options.plant]()
    if options.seed is not None:
        # All objects of earlier seeds are kept, so there is nothing to collect.
        gc.disable()
        return max([_replay(each, options.plant, options.trace) for each in options.seed])
    return _run_many(options)


def _run_many(options: argparse.Namespace) -> int:
    # Objects that are made on first use, such as codecs, are then shared by all batches.
    run_seed(0)
    gc.freeze()
    end = None if options.count is None else options.start + options.count
    done = acknowledged = failures = 0
    virtual_s, begin = 0.0, time.monotonic()
    for seeds in _batches(options.start, end):
        while seeds:
            outcomes = _run_batch(seeds)
            for outcome in outcomes:
                done += 1
                acknowledged += outcome.acknowledged
                virtual_s += outcome.virtual_s
                if outcome.violations:
                    failures += 1
                    _show(outcome, options.plant)
                    if not options.keep_going:
                        return 1
            seeds = seeds[len(outcomes) :] if outcomes else []
        if end is None:
            print(f"{done} seeds, {virtual_s / 3600:.1f} h of virtual time", flush=True)
    took_s = time.monotonic() - begin
    print(
        f"{done} seeds, {failures} failed, {acknowledged} records acknowledged,"
        f" {virtual_s:.0f} s of virtual time in {took_s:.1f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    if not _HASHES.items() <= os.environ.items():
        again = [sys.executable, "-m", "sim", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, **_HASHES})
    code = main()
    sys.stdout.flush()
    # Skip finalizers: those of dead brokers would use a closed loop.
    os._exit(code)
