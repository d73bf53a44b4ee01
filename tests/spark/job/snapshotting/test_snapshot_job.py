"""The snapshot table equals a table that is computed from what librdkafka reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.job.content import BEGIN_MS, KEEPING, Rows, latest_rows, some_messages

from harness.topic_content import NewMessage, read_messages, write_messages
from millstream.spark.job import Failure, JobError, Report, Step, read_snapshot, snapshot
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Snapshot = Callable[..., Report]


@pytest.fixture
def run(spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path) -> Snapshot:
    broker.create_topic(topic_name, 3, KEEPING)

    def run(**options: object) -> Report:
        defaults = {"bootstrap_servers": broker.bootstrap_servers, "spark": spark}
        return snapshot(topic_name, tmp_path, **(defaults | options))  # type: ignore[arg-type]

    return run


def _table(spark: SparkSession, root: Path) -> Rows:
    rows = read_snapshot(spark, root).collect()
    found = {bytes(row.key): (bytes(row.value), row.partition, row.offset) for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    plain = spark.read.parquet(str(root / "current" / "live=true")).collect()
    linked = {bytes(row.key): (bytes(row.value), row.partition, row.offset) for row in plain}
    assert linked == found, "the link is not the table"
    return found


def test_incremental(
    run: Snapshot, spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    with pytest.raises(JobError) as caught:
        read_snapshot(spark, tmp_path)
    assert caught.value.kind is Failure.NOT_FOUND
    write_messages(servers, topic_name, some_messages(300, 3, seed=1))
    assert run(dry_run=True).facts["offsets"] == 300
    assert not list(tmp_path.iterdir())
    report = run()
    assert report.facts["records"] == 300
    assert int(report.facts["records without key"] or 0) > 10
    expected = latest_rows(read_messages(servers, [topic_name]))
    assert _table(spark, tmp_path) == expected
    assert report.facts["keys"] == len(expected)

    late = [
        NewMessage(0, b"key-1", None, BEGIN_MS + 10_000_000),
        NewMessage(1, b"key-1", b"older, of another partition", BEGIN_MS),
        NewMessage(2, b"key-2", b"later offset, earlier time", BEGIN_MS - 1000),
        NewMessage(2, b"new", b"new", BEGIN_MS),
    ]
    write_messages(servers, topic_name, late)
    assert run().facts["records"] == 4
    expected = latest_rows(read_messages(servers, [topic_name]))
    assert b"key-1" not in expected
    assert _table(spark, tmp_path) == expected
    assert run().facts["records"] == 0
    write_messages(servers, topic_name, [NewMessage(1, b"key-1", b"still older", BEGIN_MS)])
    run()
    assert _table(spark, tmp_path) == expected, "a removed key came back"
    assert len(list(tmp_path.glob("v*"))) == 2


class Killed(BaseException):
    """Ends a run like SIGKILL: no handler catches it."""


def test_a_crashed_run_leaves_a_readable_table(
    run: Snapshot, spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    write_messages(servers, topic_name, some_messages(50, 3, seed=3))
    run()
    for at in ("written", "committed"):
        before = _table(spark, tmp_path)
        write_messages(servers, topic_name, some_messages(50, 3, seed=4, step_ms=2000))
        after = latest_rows(read_messages(servers, [topic_name]))

        def kill(step: Step, at: str = at) -> None:
            if step.what == at:
                raise Killed

        with pytest.raises(Killed):
            run(progress=kill)
        rows = read_snapshot(spark, tmp_path).select("key").collect()
        seen = {bytes(row.key) for row in rows}
        assert seen == set(before if at == "written" else after)
        run()
        assert _table(spark, tmp_path) == after
    with pytest.raises(JobError, match="is the snapshot of topic"):
        snapshot("other", tmp_path, bootstrap_servers=servers, spark=spark)
