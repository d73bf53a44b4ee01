"""`millstream docs` finds a page by its name, a section or an alert, and serves the pages."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.cli import docs as docs_command
from millstream.cli.main import build
from millstream.cli.support.failure import CommandError, ExitCode
from millstream.process.port import free_port

PAGES = ("index", "reference/errors", "how-to/runbook", "how-to/index", "tutorials/index")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name in PAGES:
        path = tmp_path / f"{name}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"the page {name}")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("index", "index.html"),
        ("errors", "reference/errors.html"),
        ("reference/errors", "reference/errors.html"),
        ("errors.md", "reference/errors.html"),
        ("errors#no-connection", "reference/errors.html#no-connection"),
        ("MillstreamDown", "how-to/runbook.html#millstreamdown"),
    ],
)
def test_a_page_is_found(site: Path, name: str, address: str) -> None:
    assert docs_command.page_address(site, name) == address


def test_a_page_that_does_not_exist_is_rejected_with_the_names_of_the_others(site: Path) -> None:
    with pytest.raises(CommandError, match=r"no page 'nowhere'.*reference/errors") as raised:
        docs_command.page_address(site, "nowhere")
    assert raised.value.code is ExitCode.NOT_FOUND


def test_without_pages_the_error_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="Run `make docs` in a checkout"):
        docs_command.find_site((tmp_path / "absent", tmp_path))


def test_without_a_browser_the_address_is_printed(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs_command, "_SITES", (site,))
    result = CliRunner().invoke(build(["docs"]), ["docs", "errors#fenced"])
    assert result.exit_code == 0
    assert result.stdout.strip() == (site / "reference/errors.html").as_uri() + "#fenced"


def test_pages_are_served(site: Path) -> None:
    port = free_port()
    code = (
        "from millstream.cli import docs; from pathlib import Path;"
        f" docs._serve(Path({str(site)!r}), {port}, 'reference/errors.html')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address == f"http://127.0.0.1:{port}/reference/errors.html"
            with urllib.request.urlopen(address) as response:
                assert response.read() == b"the page reference/errors"
        finally:
            process.kill()
