"""Drivers of jobs killed by SIGKILL, at named steps and at random moments.

Each driver has its own JVM. The tests of each job simulate the same deaths inside one process.
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
    """Run a job that kills itself."""
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
class JobSetup:
    """A job with its topics and its folder."""

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
        """The archive that is replayed, or None."""
        return self.folder.parent / "source" if self.job == "replay-archive" else None


@pytest.fixture
def setup(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path, job: str
) -> JobSetup:
    """Create two topics, one with records, and an archive if the job replays an archive."""
    found = JobSetup(
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
    spark: SparkSession, setup: JobSetup, tmp_path: Path, at: str
) -> None:
    told: dict[str, Any] = {
        "archive": {
            "arguments": [[setup.topic], str(setup.folder)],
            "settings": {"available_now": True, "batch_records_max": 600},
            "options": {"table_format": setup.table_format},
        },
        "snapshot": {"arguments": [setup.topic, str(setup.folder)], "options": {}},
        "replay": {
            "arguments": [setup.topic, setup.again],
            "settings": {
                "archive": setup.source and str(setup.source),
                "same_partitions": True,
                "chunk_records_max": 600,
            },
            "options": {"state": str(setup.folder)},
        },
    }[setup.function]
    told["options"]["bootstrap_servers"] = setup.servers
    _die(told | {"job": setup.function, "at": at}, tmp_path / "output")
    _finish(spark, setup)
    _compare(spark, setup)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "job",
    ["archive", "archive-delta", "archive-iceberg", "snapshot", "replay", "replay-archive"],
)
def test_jobs_killed_at_random_moments(spark: SparkSession, setup: JobSetup) -> None:
    rng = random.Random(choose_seed("MILLSTREAM_JOB_SEED"))
    folder = str(setup.folder)
    arguments = {
        "archive": ["--to", folder, "--no-follow", "--batch-records", "300"],
        "snapshot": ["--to", folder],
        "replay": ["--to", setup.again, "--state", folder, "--same-partitions", "--rate", "50"],
    }[setup.function]
    if setup.function == "archive":
        arguments += ["--format", setup.table_format]
    if setup.source is not None:
        arguments += ["--archive", str(setup.source)]
    words = ["job", setup.function, setup.topic, *arguments, "-b", setup.servers]
    command = [sys.executable, "-m", "millstream.cli.main", *words, "--master", "local[2]"]
    whole_s = _seconds_of_a_job(setup)
    ended = 0
    turns = int(os.environ.get("MILLSTREAM_JOB_TURNS", "40"))
    for turn in range(turns):
        if setup.function != "replay":
            write_messages(
                setup.servers, setup.topic, some_messages(500, 2, seed=turn, step_ms=5000)
            )
        began = time.monotonic()
        process = subprocess.Popen(command)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(whole_s * rng.uniform(0.3, 1.2))
            ended += 1
            whole_s = time.monotonic() - began
        process.kill()
        process.wait()
    _finish(spark, setup)
    _compare(spark, setup)
    assert ended < turns, "nothing was ever killed"


def _seconds_of_a_job(setup: JobSetup) -> float:
    """Return the duration of one run on this machine, mostly the start of Spark."""
    words = ["job", "snapshot", setup.topic, "--to", str(setup.folder.parent / "measured")]
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "millstream.cli.main", *words, "-b", setup.servers],
        timeout=_WAIT_S_MAX,
        check=True,
    )
    return time.monotonic() - began


def _finish(spark: SparkSession, setup: JobSetup) -> None:
    """Run the job to its end in this process."""
    options: Any = {"bootstrap_servers": setup.servers, "spark": spark}
    if setup.function == "archive":
        now = ArchiveOptions(available_now=True)
        kind = setup.table_format
        archive([setup.topic], setup.folder, table_format=kind, settings=now, **options)
    elif setup.function == "snapshot":
        take_snapshot(setup.topic, setup.folder, **options)
    else:
        same = ReplayOptions(archive=setup.source, same_partitions=True)
        replay(setup.topic, setup.again, state=setup.folder, settings=same, **options)


def _compare(spark: SparkSession, setup: JobSetup) -> None:
    """Compare the result of the job with what librdkafka reads."""
    expected = read_messages(setup.servers, [setup.topic])
    if setup.job == "archive":
        assert messages_of(spark.read.parquet(str(setup.folder))) == expected
    elif setup.function == "archive":
        assert opened_by_others(setup.folder, setup.table_format)[0] == expected
    elif setup.function == "replay":
        found = read_messages(setup.servers, [setup.again])
        assert [each[3:6] for each in found] == [each[3:6] for each in expected]
    else:
        rows = read_snapshot(spark, setup.folder).collect()
        table = {bytes(row.key): (row.partition, row.offset) for row in rows}
        assert table == {key: row[1:] for key, row in latest_rows(expected).items()}
        assert len(table) == len(rows)
