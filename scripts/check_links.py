"""Check the links and file references of all Markdown files.

A relative link must lead to a file, and its anchor to a heading. In ARCHITECTURE.md and in
`docs/*.md`, a module in backticks (`log/segment.py`) must exist below `src/millstream/`, `src/` or
the root.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
#: Where a module in backticks may lie.
BASES: Final = (ROOT / "src" / "millstream", ROOT / "src", ROOT)
#: Decisions and the changelog describe the tree as it was.
DATED: Final = ("CHANGELOG.md", "docs/decisions/")
LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MODULE: Final = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|pxd|toml|java))(?::\w+)?`")


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    failures = [
        f"{name}: {failure}"
        for name in listed.stdout.split()
        if (ROOT / name).exists()
        for failure in _failures(ROOT / name, name)
    ]
    print("\n".join(failures), end="\n" if failures else "")
    return 1 if failures else 0


def _failures(path: Path, name: str) -> Iterator[str]:
    text = _without_code_blocks(path.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists():
            yield f"the link to {target} leads nowhere"
        elif anchor and found.suffix == ".md" and anchor not in _anchors(found):
            yield f"{target} names no heading"
    if not name.startswith(DATED):
        for module in MODULE.findall(text):
            if not any((base / module).exists() for base in BASES):
                yield f"{module} does not exist"


def _without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(path: Path) -> set[str]:
    """Return the anchors of a file's headings, as GitHub forms them."""
    text = _without_code_blocks(path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


if __name__ == "__main__":
    sys.exit(main())
