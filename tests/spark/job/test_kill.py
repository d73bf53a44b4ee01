"""Drivers of jobs killed by SIGKILL, at named steps and at random moments."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.job.content import KEEPING, messages_of, some_messages

from harness.seed import choose_seed
from harness.topic_content import read_messages, write_messages
from millstream.spark.job import ArchiveOptions, ReplayOptions, archive, read_snapshot, replay
from millstream.spark.job import snapshot as take_snapshot
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVER = Path(__file__).parent / "driver.py"
_WAIT_S_MAX = 240


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


def test_an_archive_whose_driver_is_killed(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    broker.create_topic(topic_name, 2, KEEPING)
    write_messages(servers, topic_name, some_messages(200, 2, seed=5))
    folder = tmp_path / "archive"
    settings = {"available_now": True, "batch_records_max": 120}
    told = {
        "job": "archive",
        "arguments": [[topic_name], str(folder)],
        "options": {"bootstrap_servers": servers},
        "settings": settings,
    }
    _die(told | {"at": "committed", "after": 1}, tmp_path / "output")
    archive(
        [topic_name],
        folder,
        settings=ArchiveOptions(available_now=True),
        bootstrap_servers=servers,
        spark=spark,
    )
    expected = read_messages(servers, [topic_name])
    assert messages_of(spark.read.parquet(str(folder))) == expected


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
    for turn in range(40):
        if job != "replay":
            write_messages(servers, topic_name, some_messages(500, 2, seed=turn, step_ms=5))
        process = subprocess.Popen([*command, "-b", servers, "--master", "local[2]"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(4.0, 16.0))
            ended += 1
        process.kill()
        process.wait()
    _finish(spark, servers, job, topic_name, again, folder)
    expected = read_messages(servers, [topic_name])
    if job == "archive":
        assert messages_of(spark.read.parquet(folder)) == expected
    elif job == "replay":
        found = read_messages(servers, [again])
        assert [each[3:6] for each in found] == [each[3:6] for each in expected]
    else:
        keys = {bytes(row.key): row.offset for row in read_snapshot(spark, folder).collect()}
        fresh = str(tmp_path / "fresh")
        take_snapshot(topic_name, fresh, bootstrap_servers=servers, spark=spark)
        whole = {bytes(row.key): row.offset for row in read_snapshot(spark, fresh).collect()}
        assert keys == whole
    assert ended < 40, "nothing was ever killed"


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
