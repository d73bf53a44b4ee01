"""The Sphinx extension of the documentation. `docs/conf.py` loads it.

It changes the source of a page before MyST parses it:

- A block `{generated} NAME` becomes the Markdown that the generator of that name returns.
- A page of `docs/project/` becomes the file of the repository's root that it stands for.
- Links between files of the repository lead to pages. A link to another file becomes its name.

Mermaid diagrams are shown as their source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pygments.lexers.special import TextLexer
from scripts.docs import (
    cli_reference,
    error_reference,
    metric_reference,
    protocol_reference,
    python_reference,
    setting_reference,
    spark_reference,
)
from sphinx.application import Sphinx

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
#: By page, the file in the repository's root with its text.
ROOT_PAGES: Final = {
    "project/architecture": "ARCHITECTURE.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/changelog": "CHANGELOG.md",
}
GENERATORS: Final[Mapping[str, Callable[[], str]]] = {
    "cli": cli_reference.page,
    "broker-settings": setting_reference.broker_page,
    "topic-settings": setting_reference.topic_page,
    "group-settings": setting_reference.group_page,
    "metrics": metric_reference.page,
    "spark-options": spark_reference.page,
    "python": python_reference.client_page,
    "python-spark": python_reference.spark_page,
    "error-codes": error_reference.codes_page,
    "exceptions": error_reference.exceptions_page,
    "exit-codes": error_reference.exit_codes_page,
    "protocol": protocol_reference.page,
}
_GENERATED: Final = re.compile(r"^```\{generated\} ([\w-]+)\n```$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s:]+)\)")
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _on_source_read)
    app.add_lexer("mermaid", TextLexer)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _on_source_read(_app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = page_text(page, source[0])


def page_text(page: str, text: str) -> str:
    """Return the Markdown that MyST parses for a page. `text` is the content of its file."""
    origin = DOCS / f"{page}.md"
    if page in ROOT_PAGES:
        origin = ROOT / ROOT_PAGES[page]
        text = origin.read_text(encoding="utf-8")
    parts = _FENCE.split(text)
    # The even parts lie outside of fenced blocks.
    parts[::2] = [_with_page_links(part, origin.parent, page) for part in parts[::2]]
    return _GENERATED.sub(lambda match: GENERATORS[match[1]](), "".join(parts))


def _with_page_links(text: str, folder: Path, page: str) -> str:
    return _LINK.sub(lambda match: _link(match[1], match[2], folder, page), text)


def _link(label: str, target: str, folder: Path, page: str) -> str:
    path, _, anchor = target.partition("#")
    if not path:
        return f"[{label}]({target})"
    file = Path(os.path.normpath(folder / path))
    found = _page_of(file)
    if found is None:
        name = file.relative_to(ROOT).as_posix()
        return label if label.startswith("`") else f"{label} (`{name}`)" * (label != name) or label
    link = os.path.relpath(DOCS / f"{found}.md", (DOCS / page).parent)
    return f"[{label}]({link}{'#' + anchor if anchor else ''})"


def _page_of(file: Path) -> str | None:
    """Return the page that shows a file of the repository; None if there is none."""
    for page, name in ROOT_PAGES.items():
        if file == ROOT / name:
            return page
    if file == ROOT / "README.md":
        return "index"
    if file.is_dir() and (file / "index.md").exists():
        file /= "index.md"
    if file.suffix == ".md" and file.is_relative_to(DOCS):
        return file.relative_to(DOCS).with_suffix("").as_posix()
    return None
