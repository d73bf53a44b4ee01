"""Run the nemesis, or a rolling restart, on a cluster of processes: `python -m nemesis --help`.

Must be started in namespaces of its own (see `enclosure`). Prints its progress; the report goes to
`report.json` in the folder. Exit code 1 means a violation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from nemesis.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="nemesis", description=__doc__)
    parser.add_argument("folder", type=Path, help="empty folder for data, logs and the report")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument(
        "--whole-s-max", type=float, default=30.0, help="time for the cluster to become healthy"
    )
    parser.add_argument("--roll", type=int, help="instead of faults: number of rolling restarts")
    parser.add_argument("--secure", action="store_true", help="use TLS, logins by SCRAM, and ACLs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run = Run(
        options.folder,
        options.seed,
        lambda line: print(line, flush=True),
        is_secure=options.secure,
    )
    if options.roll is not None:
        report = run.roll(options.roll, options.whole_s_max)
    else:
        report = run.attack(options.minutes, options.whole_s_max)
    (options.folder / "report.json").write_text(json.dumps(asdict(report), indent=1))
    print(
        f"seed {report.seed}: {report.acknowledged} records acknowledged, {report.processed}"
        f" processed, longest gap"
        f" {report.gap_s_max} s, healthy after {report.recoveries_s} s, {len(report.errors)} errors"
    )
    for error in report.errors[:20]:
        print(f"  error: {error}")
    for violation in report.violations[:40]:
        print(f"  VIOLATION: {violation}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The clients' threads and the cluster end with the process.
    os._exit(code)
