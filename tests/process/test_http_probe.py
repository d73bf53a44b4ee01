from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == "Bearer s3cret"
        self.send_response(200 if is_known and self.path == "/readyz" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def probe(url: str, token: Path) -> int:
    command = [sys.executable, "-m", "millstream.process.http_probe", url, str(token)]
    return subprocess.run(command, capture_output=True).returncode


def test_exit_codes(url: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    assert probe(f"{url}/readyz", token) == 1
    token.write_text("s3cret\n")
    assert probe(f"{url}/readyz", token) == 0
    assert probe(f"{url}/other", token) == 1
    token.write_text("wrong")
    assert probe(f"{url}/readyz", token) == 1
