"""The Python code in the documents: complete examples run as programs, each with its own broker.

An example is identified by one of its lines. `before` defines the names that the example assumes,
`after` checks the result. An example that never ends is interrupted once it has printed `until`.
Code that is not listed must compile, and its imports from Millstream must exist.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.documents import Block, python_blocks
from harness.postgres_process import PostgresProcess
from millstream.testing.broker import LocalBroker

pytestmark = pytest.mark.xdist_group("databases")
SECONDS_MAX = 60
SERVERS = "127.0.0.1:9092"
DATABASE = "postgresql://app@localhost/shop"


@dataclass(frozen=True)
class Example:
    line: str
    before: str = ""
    after: str = ""
    until: str = ""


BARE = "from millstream import Consumer, Producer\n"
ORDERS = f"""{BARE}
with Producer() as producer:
    producer.send("orders", "2 apples", key="alice")
"""
#: Prints the records of the topic of bills as consumers see them.
BILLS = """
import threading

def show_bills():
    with Consumer(topics=["bills"]) as bills:
        for record in bills:
            print("billed", record.value.decode(), flush=True)

threading.Thread(target=show_bills, daemon=True).start()
"""
EXAMPLES = [
    Example("        print(record.key, record.value)", until="b'alice' {'apples': 2}"),
    Example(
        '        group_id="bills", topics=["orders"], delivery="exactly_once", producer=producer',
        before=ORDERS + BILLS,
        until="billed 2 apples",
    ),
    Example(
        "def bill(job):",
        before=ORDERS + BILLS + 'def invoice(value): return b"invoice for " + value\n',
        until="billed invoice for 2 apples",
    ),
    Example(
        '    outbox.write(session, "orders", order.to_json(), key=order.customer)',
        before="""
            import sqlalchemy as sa
            from sqlalchemy.orm import DeclarativeBase, Session, mapped_column
            from millstream.client.outbox.schema import OutboxSchema

            class Base(DeclarativeBase): pass

            class Order(Base):
                __tablename__ = "customer_order"
                id = mapped_column(sa.Integer, primary_key=True)
                customer = mapped_column(sa.String)

                def to_json(self): return '{"apples": 2}'

            engine = sa.create_engine("sqlite:///app.db")
            Base.metadata.create_all(engine)
            with engine.begin() as connection:
                for statement in OutboxSchema().statements("sqlite"):
                    connection.execute(sa.text(statement))
            order = Order(customer="alice")
        """,
        after="""
            with engine.connect() as connection:
                rows = connection.execute(sa.text("SELECT key, value FROM millstream_outbox"))
                assert rows.all() == [(b"alice", b'{"apples": 2}')]
        """,
    ),
    Example(
        "@once(",
        before="calls = []\n",
        after=f"""
            {ORDERS}
            once_more = once(postgres_store("{DATABASE}"), scope="billing")(calls.append)
            with Consumer(topics=["orders"]) as consumer:
                record = next(iter(consumer))
            handle(record)
            once_more(record)
            assert calls == []
        """,
    ),
    Example(
        "            offsets.advance(connection, record)",
        before=f"""
            import psycopg
            {ORDERS}
            address = "{DATABASE}"
            def bill(connection, record): print("billed", record.value.decode(), flush=True)
        """,
        until="billed 2 apples",
    ),
    Example(
        "        handle(next_record)",
        before=f"""
            {BARE}
            key, value = b"celebrity", b"2 apples"
            producer = Producer()
            consumer = Consumer(topics=["orders"])
            def handle(record): print("handled", record.value.decode(), flush=True)
        """,
        until="handled 2 apples",
    ),
]


def example_of(block: Block) -> Example | None:
    return next((each for each in EXAMPLES if each.line in block.code), None)


def program(example: Example, block: Block) -> str:
    parts = (example.before, block.code, example.after)
    return "\n".join(_flush(part) for part in parts)


def _flush(code: str) -> str:
    """Dedent the code; inserted code may be dedented already."""
    lines = code.splitlines()
    indent = next((re.match(r" *", line)[0] for line in lines if line.strip()), "")
    return "\n".join(line.removeprefix(indent) for line in lines)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "broker") as made:
        made.create_topic("orders", partitions=12)
        made.create_topic("bills")
        yield made


@pytest.mark.parametrize("block", [b for b in python_blocks() if example_of(b)], ids=str)
def test_an_example_runs(
    block: Block, broker: LocalBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    example = example_of(block)
    assert example is not None
    code = program(example, block).replace(SERVERS, broker.bootstrap_servers)
    if DATABASE in code:
        database: PostgresProcess = request.getfixturevalue("postgres")
        code = code.replace(DATABASE, database.new_database())
    script = tmp_path / "example.py"
    script.write_text(code)
    environment = {**os.environ, "MILLSTREAM_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    process = subprocess.Popen(
        ["timeout", str(SECONDS_MAX), "env", "--default-signal=INT", sys.executable, script.name],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        said = []
        for line in process.stdout:
            said.append(line)
            if example.until and example.until in line:
                process.send_signal(signal.SIGINT)
        code_of_exit = process.wait()
    text = "".join(said)
    assert example.until in text, text
    assert code_of_exit == 0 or (example.until and "KeyboardInterrupt" in said[-1]), text


@pytest.mark.parametrize("block", python_blocks(), ids=str)
def test_what_it_imports_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(textwrap.dedent(block.code))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millstream"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module} has no {name.name}"


def test_every_example_is_of_a_document() -> None:
    blocks = python_blocks()
    for example in EXAMPLES:
        assert sum(example.line in block.code for block in blocks) == 1, example.line
