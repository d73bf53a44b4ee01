"""Drivers of jobs killed by SIGKILL, at named steps and at random moments.

Each has a JVM of its own; the tests of the jobs let them die at the same steps inside one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.spark.job.content import (
    KEEPING,
    latest_rows,
    messages_of,
    opened_by_others,
    some_messages,
)

from harness.seed import choose_seed
from harness.topic_content import read_messages, write_messages
from millstream.spark.job import ArchiveOptions, ReplayOptions, archive, read_snapshot, replay
from millstream.spark.job import snapshot as take_snapshot
from millstream.spark.job.archiving.archive_job import TableFormat
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVER = Path(__file__).parent / "driver_program.py"
_WAIT_S_MAX = 600


def _die(told: dict[str, Any], output: Path) -> None:
    """Run a job that is to kill itself."""
    with output.open("a") as file:
        code = subprocess.run(
            [sys.executable, str(_DRIVER), json.dumps(told)],
            stdout=file,
            stderr=file,
            timeout=_WAIT_S_MAX,
            check=False,
        ).returncode
    assert code == -signal.SIGKILL, output.read_text()[-5000:]


@dataclass(frozen=True, slots=True)
class World:
    """A job, the topics it works on, and its folder."""

    job: str
    servers: str
    topic: str
    again: str
    folder: Path

    @property
    def function(self) -> str:
        return self.job.partition("-")[0]

    @property
    def table_format(self) -> TableFormat:
        kind = self.job.partition("-")[2]
        return cast("TableFormat", kind) if kind in ("delta", "iceberg") else "parquet"

    @property
    def source(self) -> Path | None:
        """The archive that is replayed, if one is."""
        return self.folder.parent / "source" if self.job == "replay-archive" else None


@pytest.fixture
def world(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path, job: str
) -> World:
    """Two topics, one with records; they are archived where a replay needs that."""
    found = World(
        job, broker.bootstrap_servers, topic_name, f"{topic_name}-again", tmp_path / "job"
    )
    for name in (found.topic, found.again):
        broker.create_topic(name, 2, KEEPING)
    write_messages(found.servers, found.topic, some_messages(1000, 2, seed=6, step_ms=5000))
    if found.source is not None:
        now = ArchiveOptions(available_now=True)
        archive(
            [found.topic], found.source, settings=now, bootstrap_servers=found.servers, spark=spark
        )
    return found


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("job", "at"),
    [
        *(("archive", at) for at in ("reading", "written", "committed", "in place")),
        *(("archive", at) for at in ("compacted", "replaced")),
        *(("archive-delta", at) for at in ("written", "committed")),
        *(("archive-iceberg", at) for at in ("written", "committed", "replaced")),
        *(("snapshot", at) for at in ("reading", "written", "committed", "in place")),
        *(("replay", at) for at in ("sending", "sent", "noted")),
        ("replay-archive", "sent"),
    ],
)
def test_drivers_killed_at_each_step(
    spark: SparkSession, world: World, tmp_path: Path, at: str
) -> None:
    told: dict[str, Any] = {
        "archive": {
            "arguments": [[world.topic], str(world.folder)],
            "settings": {"available_now": True, "batch_records_max": 600},
            "options": {"table_format": world.table_format},
        },
        "snapshot": {"arguments": [world.topic, str(world.folder)], "options": {}},
        "replay": {
            "arguments": [world.topic, world.again],
            "settings": {
                "archive": world.source and str(world.source),
                "same_partitions": True,
                "chunk_records_max": 600,
            },
            "options": {"state": str(world.folder)},
        },
    }[world.function]
    told["options"]["bootstrap_servers"] = world.servers
    _die(told | {"job": world.function, "at": at}, tmp_path / "output")
    _finish(spark, world)
    _compare(spark, world)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "job",
    ["archive", "archive-delta", "archive-iceberg", "snapshot", "replay", "replay-archive"],
)
def test_jobs_killed_at_random_moments(spark: SparkSession, world: World) -> None:
    rng = random.Random(choose_seed("MILLSTREAM_JOB_SEED"))
    folder = str(world.folder)
    arguments = {
        "archive": ["--to", folder, "--available-now", "--batch-records", "300"],
        "snapshot": ["--to", folder],
        "replay": ["--to", world.again, "--state", folder, "--same-partitions", "--rate", "50"],
    }[world.function]
    if world.function == "archive":
        arguments += ["--format", world.table_format]
    if world.source is not None:
        arguments += ["--archive", str(world.source)]
    words = ["job", world.function, world.topic, *arguments, "-b", world.servers]
    command = [sys.executable, "-m", "millstream.cli.main", *words, "--master", "local[2]"]
    whole_s = _seconds_of_a_job(world)
    ended = 0
    turns = int(os.environ.get("MILLSTREAM_JOB_TURNS", "40"))
    for turn in range(turns):
        if world.function != "replay":
            write_messages(
                world.servers, world.topic, some_messages(500, 2, seed=turn, step_ms=5000)
            )
        began = time.monotonic()
        process = subprocess.Popen(command)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(whole_s * rng.uniform(0.3, 1.2))
            ended += 1
            whole_s = time.monotonic() - began
        process.kill()
        process.wait()
    _finish(spark, world)
    _compare(spark, world)
    assert ended < turns, "nothing was ever killed"


def _seconds_of_a_job(world: World) -> float:
    """What one takes on this machine as it is now, most of it to start Spark."""
    words = ["job", "snapshot", world.topic, "--to", str(world.folder.parent / "measured")]
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "millstream.cli.main", *words, "-b", world.servers],
        timeout=_WAIT_S_MAX,
        check=True,
    )
    return time.monotonic() - began


def _finish(spark: SparkSession, world: World) -> None:
    """Run the job to its end, in this process."""
    options: Any = {"bootstrap_servers": world.servers, "spark": spark}
    if world.function == "archive":
        now = ArchiveOptions(available_now=True)
        kind = world.table_format
        archive([world.topic], world.folder, table_format=kind, settings=now, **options)
    elif world.function == "snapshot":
        take_snapshot(world.topic, world.folder, **options)
    else:
        same = ReplayOptions(archive=world.source, same_partitions=True)
        replay(world.topic, world.again, state=world.folder, settings=same, **options)


def _compare(spark: SparkSession, world: World) -> None:
    """What a job made, against what librdkafka reads."""
    expected = read_messages(world.servers, [world.topic])
    if world.job == "archive":
        assert messages_of(spark.read.parquet(str(world.folder))) == expected
    elif world.function == "archive":
        assert opened_by_others(world.folder, world.table_format)[0] == expected
    elif world.function == "replay":
        found = read_messages(world.servers, [world.again])
        assert [each[3:6] for each in found] == [each[3:6] for each in expected]
    else:
        rows = read_snapshot(spark, world.folder).collect()
        table = {bytes(row.key): (row.partition, row.offset) for row in rows}
        assert table == {key: row[1:] for key, row in latest_rows(expected).items()}
        assert len(table) == len(rows)
