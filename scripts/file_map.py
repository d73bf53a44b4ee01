"""Write `docs/file-map.md` from the first docstring line of each module in `src/`.

`--check` writes nothing and fails when the file is stale, or when a module has no docstring.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "millstream"
TARGET: Final = ROOT / "docs" / "file-map.md"
INTRODUCTION: Final = """\
# File map

Every package and module of `src/millstream/`, with the first line of its docstring.
`scripts/file_map.py` writes this page; `make lint` fails when it is stale.
[ARCHITECTURE.md](../ARCHITECTURE.md) says how the parts work together.
"""


def main(arguments: list[str]) -> int:
    missing: list[str] = []
    text = _render(missing)
    for path in missing:
        print(f"{path} has no docstring")
    if arguments == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print("docs/file-map.md is stale: run scripts/file_map.py")
            return 1
    else:
        TARGET.write_text(text, encoding="utf-8")
    return 1 if missing else 0


def _render(missing: list[str]) -> str:
    parts = [INTRODUCTION]
    packages = [path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE]
    for package in sorted(packages):
        name = package.relative_to(SOURCE).as_posix()
        parts.append(f"\n## `{name}/`\n\n{_summary(package / '__init__.py', missing)}\n")
        modules = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        if modules:
            parts.append("\n| module | |\n| --- | --- |\n")
        parts += [
            f"| [`{path.name}`](../{path.relative_to(ROOT).as_posix()}) "
            f"| {_summary(path, missing)} |\n"
            for path in modules
        ]
    return "".join(parts)


def _summary(path: Path, missing: list[str]) -> str:
    """Return the first paragraph of the docstring as one line of a table."""
    document = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not document:
        missing.append(path.relative_to(ROOT).as_posix())
        return ""
    return " ".join(document.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
