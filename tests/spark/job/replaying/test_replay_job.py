"""A replay sends each record once, even if runs are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.job.content import BEGIN_MS, KEEPING, some_messages

from harness.topic_content import Message, read_messages, write_messages
from millstream.spark.job import (
    ArchiveOptions,
    Failure,
    JobError,
    ReplayOptions,
    Report,
    Step,
    archive,
    replay,
)
from millstream.spark.job.replaying.replay_job import ID_HEADER, SOURCE_HEADER
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Replay = Callable[..., Report]


@pytest.fixture
def topics(broker: LocalBroker, topic_name: str) -> tuple[str, str]:
    """A topic with records, and an empty topic for the replay."""
    again = f"{topic_name}-again"
    broker.create_topic(topic_name, 3, KEEPING)
    broker.create_topic(again, 3, KEEPING)
    write_messages(broker.bootstrap_servers, topic_name, some_messages(200, 3, seed=1))
    return topic_name, again


@pytest.fixture
def run(
    spark: SparkSession, broker: LocalBroker, topics: tuple[str, str], tmp_path: Path
) -> Replay:
    def run(settings: ReplayOptions, **options: object) -> Report:
        defaults = {"bootstrap_servers": broker.bootstrap_servers, "spark": spark}
        return replay(
            *topics,
            state=tmp_path / "state",
            settings=settings,
            **(defaults | options),  # type: ignore[arg-type]
        )

    return run


def _plain(message: Message) -> tuple[object, ...]:
    """Return a record without its position and without the headers of the replay."""
    added = (SOURCE_HEADER, ID_HEADER)
    headers = tuple(each for each in message.headers if each[0] not in added)
    return (message.partition, message.key, message.value, message.timestamp, headers)


def _source(message: Message) -> str:
    (found,) = [value for name, value in message.headers if name == SOURCE_HEADER]
    assert found is not None
    return found.decode()


def test_a_replay_continues_after_a_crash(
    run: Replay, broker: LocalBroker, topics: tuple[str, str], tmp_path: Path
) -> None:
    settings = ReplayOptions(same_partitions=True, chunk_records_max=80)
    assert run(settings, dry_run=True).facts["records"] == 200
    assert not (tmp_path / "state").exists()
    for at in ("sending", "sent", "noted"):

        def kill(step: Step, at: str = at) -> None:
            if step.what == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(settings, progress=kill)
    _stop_under_a_rate(run, settings)
    chunks: list[int] = []
    report = run(settings, progress=lambda step: chunks.append(step.done))
    first = chunks[2] - chunks[0]
    assert 0 < first <= 5, "the chunk that a run under the rate had begun"
    assert report.facts["records of all runs"] == 200
    servers = broker.bootstrap_servers
    before, after = read_messages(servers, [topics[0]]), read_messages(servers, [topics[1]])
    assert [_plain(each) for each in after] == [_plain(each) for each in before]
    places = [f"{topics[0]}/{each.partition}/{each.offset}" for each in before]
    assert [_source(each) for each in after] == places
    ids = {dict(each.headers)[ID_HEADER] for each in after}
    assert ids == {str(report.facts["replay id"]).encode()}
    assert run(settings).facts["records"] == 0


def _stop_under_a_rate(run: Replay, settings: ReplayOptions) -> None:
    """A run with a low rate is stopped while it pauses."""
    stop = threading.Event()

    def record_step(step: Step) -> None:
        if step.what == "noted":
            stop.set()

    report = run(replace(settings, rate=1.0), progress=record_step, stop=stop)
    assert (report.is_ok, "run again to continue" in report.notes[0]) == (False, True)


def test_selections(
    run: Replay, spark: SparkSession, broker: LocalBroker, topics: tuple[str, str], tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    folder = tmp_path / "archive"
    now = ArchiveOptions(available_now=True)
    archive([topics[0]], folder, settings=now, bootstrap_servers=servers, spark=spark)
    since_ms, until_ms = BEGIN_MS + 30_000, BEGIN_MS + 170_000
    settings = ReplayOptions(
        archive=folder,
        since_ms=since_ms,
        until_ms=until_ms,
        keys=(b"key-1", b"key-2", b"key-3", b"key-4"),
        where="value is not null and offset % 2 = 0",
        rate=10_000,
    )
    report = run(settings)
    expected = {
        f"{each.topic}/{each.partition}/{each.offset}"
        for each in read_messages(servers, [topics[0]])
        if since_ms <= each.timestamp < until_ms
        and each.key in settings.keys
        and each.value is not None
        and each.offset % 2 == 0
    }
    found = read_messages(servers, [topics[1]])
    assert sorted(map(_source, found)) == sorted(expected)
    assert report.facts["records"] == len(expected) > 5
    with pytest.raises(JobError, match="differs in where") as caught:
        run(ReplayOptions(archive=folder, since_ms=since_ms, until_ms=until_ms, keys=settings.keys))
    assert caught.value.kind is Failure.USAGE


def test_replay_errors(
    run: Replay, spark: SparkSession, broker: LocalBroker, topics: tuple[str, str], tmp_path: Path
) -> None:
    with pytest.raises(JobError, match="'nothing much' cannot be used"):
        run(ReplayOptions(where="nothing much"), dry_run=True)
    with pytest.raises(JobError, match="offsets 0 to 9999 of partition 0: it has 0 to"):
        run(ReplayOptions(ranges={0: (0, 9999)}))
    with pytest.raises(JobError, match="has no records of topic") as caught:
        run(ReplayOptions(archive=tmp_path))
    assert caught.value.kind is Failure.NOT_FOUND
