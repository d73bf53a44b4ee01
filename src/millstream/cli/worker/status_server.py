"""The HTTP server of `worker run` and `worker scale`: one function per path.

It runs on threads of the standard library: a scrape every few seconds needs no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self

from millstream.cli.support.failure import CommandError, ExitCode

TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """A response."""

    body: bytes
    content_type: str = TEXT
    status: int = 200


class StatusServer:
    """Serves pages at `HOST:PORT`. Port 0 chooses a free one."""

    def __init__(self, address: str, pages: Mapping[str, Callable[[], Page]]) -> None:
        host, port = parse_address(address)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(pages))
        except OSError as error:
            raise CommandError(
                ExitCode.FAILED,
                f"cannot listen on {address}: {error.strerror or error}. Choose another address.",
            ) from None
        self._server.daemon_threads = True
        self.address = f"{host}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; `:PORT` means every address."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise CommandError(
            ExitCode.USAGE, f"{address!r} is not HOST:PORT, for example 127.0.0.1:9645."
        )
    return host.strip("[]"), int(port)


def _handler(pages: Mapping[str, Callable[[], Page]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in pages:
                page = pages[path]()
            else:
                page = Page(f"try {', '.join(pages)}\n".encode(), status=404)
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page.body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing: each probe would be a line."""

    return Handler
