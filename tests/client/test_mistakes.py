"""The page of likely mistakes: each is made against a real broker, and the error is the page's.

The table of docs/mistakes.md has the code of each mistake and the error that it raises. "…" in the
error stands for text that differs from run to run.
"""

from __future__ import annotations

import datetime as dt
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import millstream
from millstream import MillstreamError
from millstream.testing.broker import LocalBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mistakes.md"
_ROW = re.compile(r"\| (?P<title>[^|]+) \| `(?P<code>[^`]+)` \| `(?P<error>\w+)`: (?P<text>.+) \|")


class Mistake(NamedTuple):
    title: str
    code: str
    error: str
    text: str


def mistakes() -> list[Mistake]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")][2:]
    return [Mistake(**match.groupdict()) for row in rows if (match := _ROW.fullmatch(row))]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that creates no topics on its own, with two topics."""
    settings = {"auto.create.topics.enable": False}
    with LocalBroker(tmp_path_factory.mktemp("broker"), settings) as broker:
        broker.create_topic("orders")
        broker.create_topic("customers", configs={"cleanup.policy": "compact"})
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def tls_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A port that speaks TLS and no more."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept_tls, args=(listener, context), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def accept_tls(listener: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.settimeout(5)
            with suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass


def closing_with(stack: ExitStack, kind: type[Any]) -> Callable[..., Any]:
    """The client of this kind, which the stack closes."""

    def close(client: Any) -> None:
        with suppress(MillstreamError):
            client.close(0) if kind is millstream.Producer else client.close()

    def make(*arguments: Any, **keywords: Any) -> Any:
        client = kind(*arguments, **keywords)
        stack.callback(close, client)
        return client

    return make


def error_of(mistake: Mistake, servers: str, tls_servers: str) -> MillstreamError:
    async def coroutine(*_arguments: Any) -> None:
        pass

    with ExitStack() as stack:
        names = {name: getattr(millstream, name) for name in millstream.__all__}
        for name in ("Producer", "Consumer", "Admin"):
            names[name] = closing_with(stack, getattr(millstream, name))
        names |= {"SERVERS": servers, "TLS_SERVERS": tls_servers, "coroutine": coroutine}
        names |= {"datetime": dt.datetime, "QUICK": {"topic.metadata.propagation.max.ms": 500}}
        with pytest.raises(MillstreamError) as raised:
            exec(mistake.code, names)
    return raised.value


@pytest.mark.parametrize("mistake", mistakes(), ids=lambda mistake: mistake.title)
def test_the_error_is_that_of_the_page(mistake: Mistake, servers: str, tls_servers: str) -> None:
    error = error_of(mistake, servers, tls_servers)
    assert type(error).__name__ == mistake.error
    expected = ".*".join(map(re.escape, mistake.text.replace("\\|", "|").split("…")))
    assert re.fullmatch(expected, str(error)), str(error)


def test_every_row_is_read_and_there_are_enough() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert len(mistakes()) == len(rows) >= 20
