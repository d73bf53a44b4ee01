"""The documentation builds without warnings, and a wheel contains it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.documents import REPOSITORY
from millstream.cli.docs import page_address
from millstream.client.error_page import PAGES

pytestmark = pytest.mark.xdist_group("docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    result = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), "docs", str(folder / "html")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return folder / "html"


def test_the_pages_are_complete(site: Path) -> None:
    for source in (REPOSITORY / "docs").rglob("*.md"):
        page = source.relative_to(REPOSITORY / "docs").with_suffix(".html")
        assert (site / page).exists(), page
    assert "millstream_requests_total" in (site / "reference" / "metrics.html").read_text()


def test_the_pages_need_no_network(site: Path) -> None:
    """Links may lead elsewhere; styles, scripts, fonts and images may not."""
    loaded = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:)?//[^"]+"')
    for page in site.rglob("*.html"):
        assert loaded.search(page.read_text()) is None, page


def test_sections_that_errors_and_alerts_name_exist(site: Path) -> None:
    for name in ("MillstreamDown", *PAGES):
        path, _, anchor = page_address(site, name).partition("#")
        assert f'id="{anchor}"' in (site / path).read_text()


def test_a_wheel_contains_the_pages(site: Path, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "docs").symlink_to(site)
    for name in ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "lib")]
    environment = {**os.environ, "MILLSTREAM_PURE": "1"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "lib" / "millstream" / "docs_site" / "index.html").exists()
    assert (tmp_path / "lib" / "millstream" / "docs_site" / "_static").is_dir()
