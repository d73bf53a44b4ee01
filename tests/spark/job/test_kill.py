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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.job.content import KEEPING, latest_rows, messages_of, some_messages

from harness.seed import choose_seed
from harness.topic_content import read_messages, write_messages
from millstream.spark.job import ArchiveOptions, ReplayOptions, archive, read_snapshot, replay
from millstream.spark.job import snapshot as take_snapshot
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVER = Path(__file__).parent / "driver.py"
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


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "when",
    [
        *(("archive", at) for at in ("reading", "written", "committed", "in place")),
        *(("archive", at) for at in ("compacted", "replaced")),
        *(("snapshot", at) for at in ("reading", "written", "committed", "in place")),
        *(("replay", at) for at in ("sending", "sent", "noted")),
    ],
    ids="-".join,
)
def test_drivers_killed_at_each_step(
    spark: SparkSession,
    broker: LocalBroker,
    topic_name: str,
    tmp_path: Path,
    when: tuple[str, str],
) -> None:
    _kill_and_compare(spark, broker, topic_name, tmp_path, when)


def _kill_and_compare(
    spark: SparkSession, broker: LocalBroker, topic: str, tmp_path: Path, when: tuple[str, str]
) -> None:
    """Have a driver die at a step, run the job again, and look at what it made."""
    job, at = when
    servers, again, folder = broker.bootstrap_servers, f"{topic}-again", str(tmp_path / job)
    for name in (topic, again):
        broker.create_topic(name, 2, KEEPING)
    write_messages(servers, topic, some_messages(200, 2, seed=5))
    told: dict[str, Any] = {
        "archive": {
            "arguments": [[topic], folder],
            "settings": {"available_now": True, "batch_records_max": 120},
        },
        "snapshot": {"arguments": [topic, folder], "settings": {}},
        "replay": {
            "arguments": [topic, again],
            "settings": {"same_partitions": True, "chunk_records_max": 120},
        },
    }[job]
    options = {"bootstrap_servers": servers} | ({"state": folder} if job == "replay" else {})
    _die(told | {"job": job, "options": options, "at": at}, tmp_path / "output")
    _finish(spark, servers, job, topic, again, folder)
    _compare(spark, servers, job, topic, again, folder)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("job", ["archive", "snapshot", "replay"])
def test_jobs_killed_at_random_moments(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path, job: str
) -> None:
    rng = random.Random(choose_seed("MILLSTREAM_JOB_SEED"))
    servers = broker.bootstrap_servers
    again, folder = f"{topic_name}-again", str(tmp_path / job)
    for name in (topic_name, again):
        broker.create_topic(name, 2, KEEPING)
    arguments = {
        "archive": ["--to", folder, "--available-now", "--batch-records", "300"],
        "snapshot": ["--to", folder],
        "replay": ["--to", again, "--state", folder, "--same-partitions", "--rate", "100"],
    }[job]
    command = [sys.executable, "-m", "millstream.cli.main", "job", job, topic_name, *arguments]
    write_messages(servers, topic_name, some_messages(2000, 2, seed=6, step_ms=5))
    ended = 0
    turns = int(os.environ.get("MILLSTREAM_JOB_TURNS", "40"))
    for turn in range(turns):
        if job != "replay":
            write_messages(servers, topic_name, some_messages(500, 2, seed=turn, step_ms=5))
        process = subprocess.Popen([*command, "-b", servers, "--master", "local[2]"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(4.0, 16.0))
            ended += 1
        process.kill()
        process.wait()
    _finish(spark, servers, job, topic_name, again, folder)
    _compare(spark, servers, job, topic_name, again, folder)
    assert ended < turns, "nothing was ever killed"


def _finish(
    spark: SparkSession, servers: str, job: str, topic: str, again: str, folder: str
) -> None:
    """Run the job to its end, in this process."""
    if job == "archive":
        now = ArchiveOptions(available_now=True)
        archive([topic], folder, settings=now, bootstrap_servers=servers, spark=spark)
    elif job == "snapshot":
        take_snapshot(topic, folder, bootstrap_servers=servers, spark=spark)
    else:
        same = ReplayOptions(same_partitions=True)
        replay(topic, again, state=folder, settings=same, bootstrap_servers=servers, spark=spark)


def _compare(
    spark: SparkSession, servers: str, job: str, topic: str, again: str, folder: str
) -> None:
    """What a job made, against what librdkafka reads."""
    expected = read_messages(servers, [topic])
    if job == "archive":
        assert messages_of(spark.read.parquet(folder)) == expected
    elif job == "replay":
        found = read_messages(servers, [again])
        assert [each[3:6] for each in found] == [each[3:6] for each in expected]
    else:
        rows = read_snapshot(spark, folder).collect()
        table = {bytes(row.key): (row.partition, row.offset) for row in rows}
        assert table == {key: row[1:] for key, row in latest_rows(expected).items()}
        assert len(table) == len(rows)
