"""Report functions, classes, methods and properties of `src/` that nothing uses.

Tests do not count as a use: code that only tests call is dead in the product. A name that the
README or a page in `docs/` mentions is public and counts as used. `ALLOWED` lists the names that
frameworks call. Fields and variables are not checked: protocol messages and enums declare many that
only clients read.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from vulture import Vulture

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("src", "bench", "examples")
DOCUMENTS: Final = ("README.md", "docs")
KINDS: Final = {"function", "method", "class", "property"}
CONFIDENCE_MIN: Final = 60

#: Names that a framework calls, as glob-free regular expressions of the whole name.
ALLOWED: Final = (
    # asyncio protocols
    "get_buffer|buffer_updated|eof_received|connection_lost|connection_made|resume_writing",
    # Python itself
    "__getattr__|__dir__|_missing_|formatTime|log_message|redirect_request",
    # pytest plugins
    "pytest_\\w+|millstream_\\w+",
    # Spark's data source API and StreamingQueryListener
    "onQuery\\w+|initialOffset|latestOffset|reportLatestOffset|prepareForTriggerAvailableNow",
    "getDefaultReadLimit|DefaultSource|streamReader|streamWriter",
    # SQLAlchemy's compiler
    "_spell",
    # public API that no page mentions
    "RedisStore|outbox_tables|rewind_async|send_offsets",
    # types of the protocol that no message uses yet
    "uint32|float64",
    # what tests observe
    "memory_bytes|is_started",
)


def main() -> int:
    documented = _documented_names()
    allowed = re.compile("|".join(ALLOWED))
    checker = Vulture(ignore_decorators=["@app.*", "@*.command", "@compiles*"])
    checker.scavenge([str(ROOT / source) for source in SOURCES])
    found = [
        f"{Path(item.filename).relative_to(ROOT)}:{item.first_lineno}: {item.typ} {item.name}"
        for item in checker.get_unused_code(min_confidence=CONFIDENCE_MIN)
        if item.typ in KINDS
        and Path(item.filename).is_relative_to(ROOT / "src")
        and item.name not in documented
        and not allowed.fullmatch(item.name)
    ]
    if found:
        print("Nothing uses these; delete them, or add the name to scripts/dead_code.py:")
        print("\n".join(found))
    return 1 if found else 0


def _documented_names() -> set[str]:
    names: set[str] = set()
    for document in DOCUMENTS:
        path = ROOT / document
        for file in path.rglob("*.md") if path.is_dir() else [path]:
            names.update(re.findall(r"[A-Za-z_]\w+", file.read_text(encoding="utf-8")))
    return names


if __name__ == "__main__":
    sys.exit(main())
