"""`millstream docs`: the documentation that was installed with the package, offline.

The built pages are in the package's folder `docs_site`. In a checkout `make docs` builds them into
`build/docs`, which is used if the package has none.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from millstream.cli.support.failure import CommandError, ExitCode, guarded

_PACKAGE: Final = Path(__file__).resolve().parents[1]
#: Folders that may have the pages. The first one that exists is used.
_SITES: Final = (_PACKAGE / "docs_site", _PACKAGE.parents[1] / "build" / "docs")
_HOST: Final = "127.0.0.1"
#: Alerts are named like this; the runbook has a section for each.
_ALERT_PREFIX: Final = "Millstream"
_RUNBOOK: Final = "how-to/runbook"
#: Names that are shorter than the pages' own.
_SHORT_NAMES: Final = {"reference": "reference/index", "tutorial": "tutorials/first-topic"}


@guarded
def docs(
    page: Annotated[
        str,
        typer.Argument(
            help="A page (errors, how-to/outbox), a section of it (errors#no-connection), or an"
            " alert (MillstreamDown)."
        ),
    ] = "index",
    serve: Annotated[
        int | None,
        typer.Option(
            "--serve", metavar="PORT", help=f"Serve the pages on http://{_HOST}:PORT until Ctrl-C."
        ),
    ] = None,
) -> None:
    """Open the documentation in a browser, or print the path of a page if there is none."""
    site = find_site(_SITES)
    address = page_address(site, page)
    if serve is not None:
        _serve(site, serve, address)
        return
    path, _, anchor = address.partition("#")
    url = (site / path).resolve().as_uri() + (f"#{anchor}" if anchor else "")
    typer.echo(url)
    if _has_browser():
        webbrowser.open(url)


def find_site(places: tuple[Path, ...]) -> Path:
    """Return the folder with the pages. Raises CommandError if there is none."""
    for place in places:
        if (place / "index.html").exists():
            return place
    raise CommandError(
        ExitCode.NOT_FOUND,
        "this installation has no documentation: it was built without Sphinx. Run `make docs` in"
        " a checkout, or read the folder docs/ there.",
    )


def page_address(site: Path, name: str) -> str:
    """Return the file of a page below the site, with `#section` if the name has one.

    A page is found by its path or by the last part of it. Raises CommandError if no page, or more
    than one, has this name."""
    if name.startswith(_ALERT_PREFIX) and "#" not in name:
        name = f"{_RUNBOOK}#{name.lower()}"
    wanted, _, anchor = name.partition("#")
    wanted = _SHORT_NAMES.get(wanted, wanted.removesuffix(".html").removesuffix(".md"))
    pages = sorted(
        path.relative_to(site).with_suffix("").as_posix()
        for path in site.rglob("*.html")
        if not path.name.startswith("_")
    )
    found = [each for each in pages if each == wanted]
    found = found or [each for each in pages if each.rpartition("/")[2] == wanted]
    if len(found) != 1:
        raise CommandError(ExitCode.NOT_FOUND, _not_found(name, found, pages))
    return f"{found[0]}.html" + (f"#{anchor}" if anchor else "")


def _not_found(name: str, found: list[str], pages: list[str]) -> str:
    if found:
        return f"several pages are named {name!r}: {', '.join(found)}."
    shown = [each for each in pages if not each.startswith(("decisions/", "project/"))]
    return f"there is no page {name!r}. The pages are {', '.join(shown)}."


def _has_browser() -> bool:
    """Whether a browser can show a page to the person at this terminal."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and (has_display or sys.platform == "darwin")


def _serve(site: Path, port: int, address: str) -> None:
    import http.server

    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    try:
        server = http.server.ThreadingHTTPServer((_HOST, port), handler)
    except OSError as error:
        raise CommandError(
            ExitCode.FAILED, f"port {port} cannot be used: {error.strerror}. Choose another one."
        ) from None
    with server:
        print(f"http://{_HOST}:{server.server_port}/{address}", flush=True)
        server.serve_forever()
