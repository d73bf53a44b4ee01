"""The check for vulnerable dependencies runs where its service can be reached, and only there."""

from __future__ import annotations

import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = REPOSITORY / "scripts" / "audit_dependencies.py"
    spec = importlib.util.spec_from_file_location("audit_dependencies", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def service(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_service_that_responds_is_used(script: ModuleType) -> None:
    with service(b'{"vulnerabilities": []}') as url:
        assert script.unreachable(url) is None


@pytest.mark.parametrize(
    ("body", "status"), [(b"not json", 200), (b"[]", 200), (b"{}", 200), (b"{}", 404)]
)
def test_other_responses_are_reasons(script: ModuleType, body: bytes, status: int) -> None:
    with service(body, status) as url:
        assert script.unreachable(url)


def test_no_response_is_a_reason(script: ModuleType) -> None:
    assert "refused" in script.unreachable("http://127.0.0.1:1/").lower()


def test_without_the_service_the_script_says_so_and_succeeds(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "unreachable", lambda: "no route to host")
    assert script.main() == 0
    assert "not run" in capsys.readouterr().out


def test_findings_are_failures(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "unreachable", lambda: None)
    monkeypatch.setattr(script, "command", lambda path: ["false"])
    assert script.main() == 1
    monkeypatch.setattr(script, "command", lambda path: ["true"])
    assert script.main() == 0
