"""Print the branch coverage of each package of `src/millstream/`, the lowest first.

Reads what `make coverage` has measured. The end names the packages below `TARGET_PERCENT`, and the
modules that are not measured because they run compiled. The exit code does not depend on the
figures: they are for people.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from coverage import Coverage
from coverage.results import Numbers

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "millstream"
TARGET_PERCENT: Final = 90.0


def main() -> int:
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    coverage.load()
    packages: defaultdict[str, Numbers] = defaultdict(Numbers)
    for file in coverage.get_data().measured_files():
        path = Path(file)
        if path.is_relative_to(SOURCE):
            name = path.parent.relative_to(SOURCE).as_posix()
            packages[name] += coverage._analyze(file).numbers
    rows = sorted(packages.items(), key=lambda row: row[1].pc_covered)
    for name, numbers in rows:
        print(f"{numbers.pc_covered:6.1f} %  {name}")
    total = sum((numbers for _, numbers in rows), Numbers())
    print(f"{total.pc_covered:6.1f} %  all of src/millstream")
    low = [name for name, numbers in rows if numbers.pc_covered < TARGET_PERCENT]
    print(f"Packages below {TARGET_PERCENT:.0f} %: {', '.join(low) if low else 'none'}")
    omitted = ", ".join(str(pattern) for pattern in coverage.config.run_omit or ())
    print(f"Not measured, because they are compiled: {omitted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
