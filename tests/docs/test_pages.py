"""The blocks of README.md and of the documentation: each is run, or says why it is not.

Each page has a folder and a broker of its own. Addresses of the documents lead to that broker, and
to databases that the tests start.
"""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from docs.documents import PAGES, REPOSITORY, Block, blocks, python_blocks, runnable
from docs.page_runner import Interpreter, PageRunner, page_environment
from harness.process.etcd_process import require_etcd
from harness.tool.java import require_java
from millstream.process.port import free_port
from millstream.testing.broker import LocalBroker

POSTGRESQL = "postgresql://app@localhost/shop"
REDIS = "redis://localhost:6379"
BROKER = ("127.0.0.1:9092", "localhost:9092")
METRICS = "127.0.0.1:9644"
#: A broker with TLS, which a page starts itself.
SECURE = "127.0.0.1:9093"
CLUSTER = "millstream cluster up"
#: The brokers and the ports of etcd that this command starts with.
CLUSTER_BROKERS = 3
CLUSTER_ETCD_PORTS = 2
ACLS = "millstream acl"
#: The client of a page is anonymous.
AUTHORIZER = {"authorizer.class.name": "millstream", "super.users": "User:ANONYMOUS"}
#: Blocks that are not run, at most.
SKIPPED_MAX = 40
REASON_MIN = 10


def _text(path: Path) -> str:
    return "\n".join(block.code for block in runnable(path))


def _group(path: Path) -> str:
    """Return the tests that a page runs with: those of databases share a server."""
    return "databases" if POSTGRESQL in _text(path) or REDIS in _text(path) else "docs"


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=_name(path), marks=pytest.mark.xdist_group(_group(path)))
        for path in PAGES
        if runnable(path)
    ],
)
def test_the_blocks_of_a_page_run(
    path: Path, interpreter: Interpreter, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = _text(path)
    if "spark" in text:
        require_java()
    replaced = _databases(text, request)
    if CLUSTER in text:
        require_etcd()
        _run(path, interpreter, tmp_path, replaced | _cluster_ports())
        return
    http = f"127.0.0.1:{free_port()}" if METRICS in text else ""
    settings = {"http.listen": http} | (AUTHORIZER if ACLS in text else {})
    with LocalBroker(tmp_path / "broker", settings) as broker:
        replaced |= dict.fromkeys(BROKER, broker.bootstrap_servers)
        replaced[SECURE] = f"127.0.0.1:{free_port()}"
        _run(path, interpreter, tmp_path, replaced | {METRICS: http})


def _databases(text: str, request: pytest.FixtureRequest) -> dict[str, str]:
    replaced = {}
    if POSTGRESQL in text:
        replaced[POSTGRESQL] = request.getfixturevalue("postgres").new_database()
    if REDIS in text:
        replaced[REDIS] = request.getfixturevalue("redis_address")
    return replaced


def _cluster_ports() -> dict[str, str]:
    """Return what makes `cluster up` use free ports."""
    port, http = free_port(CLUSTER_BROKERS), free_port(CLUSTER_BROKERS)
    etcd = free_port(CLUSTER_ETCD_PORTS)
    ports = f"{CLUSTER} --port {port} --http-port {http} --etcd-port {etcd}"
    return dict.fromkeys(BROKER, f"127.0.0.1:{port}") | {CLUSTER: ports}


def _run(path: Path, interpreter: Interpreter, folder: Path, replaced: Mapping[str, str]) -> None:
    work = folder / "page"
    work.mkdir()
    environment = page_environment(folder) | {"MILLSTREAM_BOOTSTRAP_SERVERS": replaced[BROKER[0]]}
    page = PageRunner(work, environment, replaced, interpreter)
    try:
        for block in runnable(path):
            page.run(block)
        page.run_tests()
    finally:
        page.close()


@pytest.mark.parametrize("block", python_blocks(), ids=str)
def test_what_a_block_imports_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(textwrap.dedent(block.code))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millstream"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module} has no {name.name}"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    skipped = [block for path in PAGES for block in blocks(path) if block.mode == "skip"]
    for block in skipped:
        assert len(block.text) >= REASON_MIN, f"{block} has no reason"
    assert len(skipped) <= SKIPPED_MAX


def test_a_block_without_a_language_is_of_no_program() -> None:
    """A block of commands must say so: otherwise it would not be run."""
    for path in PAGES:
        for block in blocks(path):
            assert block.language, f"{block} has no language: bash, python, text, ..."
