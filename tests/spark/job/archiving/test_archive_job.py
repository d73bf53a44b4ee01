"""Archives contain exactly the records that librdkafka reads, even if runs are killed."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.job.content import KEEPING, messages_of, opened_by_others, some_messages

from harness.topic_content import read_messages, write_messages
from millstream.spark.job import ArchiveOptions, Failure, JobError, Report, Step, archive
from millstream.spark.job.archiving.archive_job import TableFormat, open_store
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = ArchiveOptions(available_now=True, batch_records_max=250)

Archive = Callable[..., Report]


@pytest.fixture
def topic(broker: LocalBroker, topic_name: str) -> str:
    broker.create_topic(topic_name, 3, KEEPING)
    write_messages(broker.bootstrap_servers, topic_name, some_messages(400, 3, seed=1))
    return topic_name


@pytest.fixture
def run(spark: SparkSession, broker: LocalBroker, topic: str, tmp_path: Path) -> Archive:
    """Archive the topic into `tmp_path`."""

    def run(**options: object) -> Report:
        defaults = {"settings": NOW, "bootstrap_servers": broker.bootstrap_servers, "spark": spark}
        return archive([topic], tmp_path, **(defaults | options))  # type: ignore[arg-type]

    return run


def _archived(spark: SparkSession, root: Path, topic: str, kind: TableFormat = "parquet") -> object:
    store = open_store(root, kind)
    return messages_of(store.read(spark, store.committed(), [topic]))


def test_archive_by_hour_and_continue(
    run: Archive, spark: SparkSession, broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    foretold = run(dry_run=True)
    assert (foretold.facts["offsets"], foretold.is_dry) == (400, True)
    assert not list(tmp_path.iterdir())

    first = run()
    assert (first.facts["records"], first.facts["batches"]) == (400, 2)
    expected = read_messages(broker.bootstrap_servers, [topic])
    assert _archived(spark, tmp_path, topic) == expected
    folders = Counter(
        str(path.parent.relative_to(tmp_path)) for path in tmp_path.glob("topic=*/**/*.parquet")
    )
    days = {f"topic={topic}/date=2026-01-31/hour=22", f"topic={topic}/date=2026-01-31/hour=23"}
    assert set(folders) == days
    assert set(folders.values()) == {1}, "the files of a folder were not joined"
    plain = spark.read.parquet(str(tmp_path))
    assert messages_of(plain) == expected

    write_messages(broker.bootstrap_servers, topic, some_messages(90, 3, seed=2))
    assert run().facts["records"] == 90
    assert run().facts["records"] == 0
    assert _archived(spark, tmp_path, topic) == read_messages(broker.bootstrap_servers, [topic])


def test_run_until_stopped(
    run: Archive, spark: SparkSession, broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    stop = threading.Event()
    waits = count(1)

    def record_step(step: Step) -> None:
        if step.what == "waiting for records":
            if next(waits) == 1:
                write_messages(broker.bootstrap_servers, topic, some_messages(50, 3, seed=3))
            elif (tmp_path / "_millstream" / f"{2:020}.json").exists():
                stop.set()

    settings = ArchiveOptions(interval_s=0.05)
    report = run(settings=settings, progress=record_step, stop=stop)
    assert (report.facts["records"], report.is_ok) == (450, True)
    assert _archived(spark, tmp_path, topic) == read_messages(broker.bootstrap_servers, [topic])


class Killed(BaseException):
    """Ends a run like SIGKILL: no handler catches it."""


@pytest.mark.parametrize("at", ["written", "committed", "compacted", "replaced"])
def test_a_crashed_run_loses_and_duplicates_no_record(
    run: Archive, spark: SparkSession, broker: LocalBroker, topic: str, tmp_path: Path, at: str
) -> None:
    numbers = count(1)
    fatal = 2 if at in ("written", "committed") else 1

    def kill(step: Step) -> None:
        if step.what == at and next(numbers) == fatal:
            raise Killed

    with pytest.raises(Killed):
        run(progress=kill)
    expected = read_messages(broker.bootstrap_servers, [topic])
    visible = messages_of(spark.read.parquet(str(tmp_path)))
    if at != "replaced":
        assert len(visible) == len(set(visible)), "readers of the folder see records twice"
    assert set(visible) <= set(expected)
    state = open_store(tmp_path).committed()
    assert sum(each.rows for each in state.files) == sum(
        span.size for spans in state.coverage.spans.values() for span in spans
    )

    run()
    assert _archived(spark, tmp_path, topic) == expected
    assert messages_of(spark.read.parquet(str(tmp_path))) == expected
    assert not list((tmp_path / "_staging").glob("*"))


#: The steps at which runs die. `moved` is between moving files and Delta's commit.
_DEATHS = {
    "delta": ("written", "moved", "committed"),
    "iceberg": ("written", "committed", "compacted", "replaced"),
}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_table_formats(
    run: Archive,
    spark: SparkSession,
    broker: LocalBroker,
    topic: str,
    tmp_path: Path,
    kind: TableFormat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for at in _DEATHS[kind]:

        def kill(step: Step, at: str = at) -> None:
            if step.what == at and (step.done or at != "written"):
                raise Killed

        with monkeypatch.context() as patch:
            if at == "moved":
                patch.setattr("millstream.spark.job.archiving.delta_store._add_action", _die)
            with pytest.raises(Killed):
                run(table_format=kind, progress=kill)
    expected = read_messages(broker.bootstrap_servers, [topic])
    assert opened_by_others(tmp_path, kind)[0] == expected
    report = run(table_format=kind)
    rows, files = opened_by_others(tmp_path, kind)
    assert report.facts["records"] == 0
    assert rows == _archived(spark, tmp_path, topic, kind) == expected
    assert files == 2, "the files of an hour were not joined"
    with pytest.raises(JobError, match=f"an archive of the format {kind}, not parquet"):
        run()


def _die(*_: object) -> None:
    raise Killed


def test_archive_errors(run: Archive, broker: LocalBroker, topic: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="'nowhere' does not exist") as caught:
        archive(["nowhere"], tmp_path, bootstrap_servers=broker.bootstrap_servers)
    assert caught.value.kind is Failure.NOT_FOUND
    with pytest.raises(JobError, match="at least one topic"):
        archive([], tmp_path)
    with open_store(tmp_path).lock(), pytest.raises(JobError, match="another run") as caught:
        run()
    assert caught.value.kind is Failure.CONFLICT
    run()
    broker.delete_topic(topic)
    broker.create_topic(topic, 3, KEEPING)
    with pytest.raises(JobError, match=re.escape(f"{topic!r} was deleted and created again")):
        run()
