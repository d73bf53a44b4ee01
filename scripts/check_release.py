"""Check that a tag may be released: `check_release.py TAG REPOSITORY-URL`.

The tag is `v` and the version of pyproject.toml, CHANGELOG.md has a section for the version, and
every address in [project.urls] is in the repository. Prints what is wrong and exits with 1.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent


def problems(
    project: dict[str, Any], changelog: str, tag: str, repository_url: str
) -> Iterator[str]:
    """Yield a sentence for each reason not to release."""
    version = project["version"]
    if tag != f"v{version}":
        yield f"the tag is {tag}, but pyproject.toml has version {version}: expected v{version}"
    headings = [line.split()[1:2] for line in changelog.splitlines() if line.startswith("## ")]
    if [version] not in headings:
        yield f"CHANGELOG.md has no section '## {version}': rename 'Unreleased'"
    for name, url in project["urls"].items():
        if url != repository_url and not url.startswith(f"{repository_url}/"):
            yield f"[project.urls] {name} is {url}, which is not in {repository_url}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: check_release.py TAG REPOSITORY-URL\n")
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(problems(project, (ROOT / "CHANGELOG.md").read_text(), *arguments))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
