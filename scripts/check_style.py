"""Check the documentation for words that the glossary and the style rules replace.

The pages of `docs/`, README, CONTRIBUTING, ARCHITECTURE, SECURITY and the alerts are checked, but
not their code. Decisions and the changelog are as they were written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
#: By pattern, what to write instead.
WORDS: Final = {
    r"again and again": "repeatedly",
    r"answer(?:s|ed|ing)?": "respond, response",
    r"at hand": "available",
    r"be gone|is gone for good": "is lost",
    r"doubled": "duplicated",
    r"easily|easy to use|obviously|simply|of course|just": "leave it out",
    r"mend(?:s|ed)?": "fix",
    r"please": "leave it out",
    r"turn(?:s|ed)? away": "reject",
    r"under way": "in progress",
    r"whoever|whosoever": "name the subject",
}
#: Uses of a word in its everyday sense: a page answers questions, a leader has just died.
ALLOWED: Final = re.compile(r"answers(?: it\.| common|$)|has just", re.MULTILINE)
_CODE: Final = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|^<!--.*?-->", re.MULTILINE | re.DOTALL)
_PATTERNS: Final = {
    re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in WORDS.items()
}


def main() -> int:
    failures = [failure for path in _files() for failure in _failures(path)]
    print("\n".join(failures), end="\n" if failures else "")
    return 1 if failures else 0


def _files() -> Iterator[Path]:
    yield from (
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")
    )
    yield ROOT / "deploy" / "prometheus" / "alerts.yml"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if "decisions" not in path.parts and path.name != "file-map.md":
            yield path


def _failures(path: Path) -> Iterator[str]:
    text = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), path.read_text("utf-8"))
    for number, line in enumerate(ALLOWED.sub("", text).splitlines(), 1):
        for pattern, instead in _PATTERNS.items():
            for match in pattern.finditer(line):
                name = path.relative_to(ROOT)
                yield f"{name}:{number}: {match[0]!r}: write {instead!r}"


if __name__ == "__main__":
    sys.exit(main())
