"""Jobs, source and sink work over Spark Connect as in a classic session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.job.content import KEEPING, messages_of, some_messages

from harness.process.spark_connect import spark_connect_server
from harness.topic_content import read_messages, write_messages
from millstream.spark import hide_secrets, read_topic_history
from millstream.spark.job import (
    ArchiveOptions,
    Failure,
    JobError,
    Question,
    ReplayOptions,
    archive,
    audit,
    replay,
)
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
_COMMAND = Path(sys.executable).with_name("millstream")
_WAIT_S_MAX = 240


@pytest.fixture
def topics(broker: LocalBroker, topic_name: str) -> tuple[str, str]:
    """A topic with records, and an empty topic."""
    names = topic_name, f"{topic_name}-again"
    for name in names:
        broker.create_topic(name, 2, KEEPING)
    write_messages(broker.bootstrap_servers, topic_name, some_messages(100, 2, seed=1))
    return names


@pytest.fixture
def remote(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A Spark Connect session of a server inside the shared Spark."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    service = getattr(getattr(spark._jvm, _SERVICE), "MODULE$")
    service.start(spark._jsc.sc())
    # Otherwise Spark creates functions and columns for a classic session.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session: Any = ConnectSession.builder.remote(f"sc://127.0.0.1:{service.localPort()}").create()
    try:
        yield session
    finally:
        session.stop()
        at_once = spark._jvm.scala.Option.empty()
        service.stop(at_once, at_once)


def test_jobs_over_spark_connect(
    remote: SparkSession, broker: LocalBroker, topics: tuple[str, str], tmp_path: Path
) -> None:
    topic, again = topics
    servers = broker.bootstrap_servers
    options: Any = {"bootstrap_servers": servers, "spark": remote}
    expected = read_messages(servers, [topic])
    with pytest.raises(JobError, match="'nothing much' cannot be used") as caught:
        replay(
            topic, again, state=tmp_path, settings=ReplayOptions(where="nothing much"), **options
        )
    assert caught.value.kind is Failure.USAGE
    in_parts = ArchiveOptions(available_now=True, batch_records_max=60)
    folder = tmp_path / "archive"
    report = archive([topic], folder, table_format="delta", settings=in_parts, **options)
    assert report.facts["files compacted"], "the folder has no files that do not count"
    whole = read_topic_history(
        remote, topic, archive=folder, table_format="delta", bootstrap_servers=servers
    )
    assert messages_of(whole) == expected
    rows = whole.select("key", "value", "partition", "timestamp")
    writer = rows.write.format("millstream").option("kafka.bootstrap.servers", servers)
    writer.option("topic", again).mode("append").save()
    report = audit(topic, [again, str(folder)], Question(order="offset"), **options)
    assert (report.is_ok, report.facts["duplicate"], report.facts["missing"]) == (False, 100, 0)


def test_a_server_shows_no_secret(
    remote: SparkSession, spark: Any, broker: LocalBroker, topics: tuple[str, str]
) -> None:
    """Spark Connect shows requests as texts, with all options."""
    topic, again = topics
    secrets = {
        "kafka.sasl.password": "hidden-1",
        "kafka.sasl.jaas.config": 'a.b.Module required password=\'hidden-2\' user="\\"hidden-3";',
        "Kafka.Sasl.OAuthBearer.Client.Secret": "hidden-4",
        "kafka.ssl.key.password": 'hid"den-5 hidden-5',
    }
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    hide_secrets(remote)
    frame = remote.read.format("millstream").options(**secrets, **servers, subscribe=topic).load()
    assert frame.count() == 100
    writer = frame.select("key", "value").write.format("millstream").options(**secrets, **servers)
    writer.option("topic", again).mode("append").save()
    tracked = spark._jsc.sc().statusStore()
    stages = [
        tracked.lastStageAttempt(stage)
        for job in _each(tracked.jobsList(None))
        for stage in _each(job.stageIds())
    ]
    shown = "".join(stage.details() for stage in stages)
    assert "kafka.bootstrap.servers" in shown, "the server shows options"
    assert "hidden" not in shown


def test_other_filters_of_a_session_stay(
    remote: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    name = "spark.sql.redaction.string.regex"
    hide_secrets(remote)
    own = remote.conf.get(name)
    assert own is not None
    hide_secrets(remote)
    assert remote.conf.get(name) == own
    remote.conf.set(name, "mine")
    hide_secrets(remote)
    assert remote.conf.get(name) == f"mine|{own}"
    # Spark does not return a setting with this word.
    remote.conf.set(name, "my password")
    hide_secrets(remote)
    assert own in caplog.messages[-1]


def _each(items: Any) -> list[Any]:
    return [items.apply(number) for number in range(items.size())]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_commands_on_a_server(broker: LocalBroker, topics: tuple[str, str], tmp_path: Path) -> None:
    """All jobs run on a server that Spark's own script started."""
    topic, again = topics
    broker.create_topic(f"{topic}.dlq", 1)
    jobs: list[tuple[str, ...]] = [
        ("archive", topic, "--to", str(tmp_path / "archive"), "--no-follow"),
        ("archive", topic, "--to", str(tmp_path / "d"), "--no-follow", "--format", "delta"),
        ("archive", topic, "--to", str(tmp_path / "i"), "--no-follow", "--format", "iceberg"),
        ("snapshot", topic, "--to", str(tmp_path / "snapshot")),
        ("replay", topic, "--to", again, "--state", str(tmp_path / "replay")),
        ("audit", topic, "--output", again),
        ("profile", topic, "--html", str(tmp_path / "page.html")),
        ("deadletters", topic),
    ]
    with spark_connect_server(tmp_path) as address:
        where = ("--remote", address, "--bootstrap-server", broker.bootstrap_servers, "--json")
        for job in jobs:
            done = subprocess.run(
                [_COMMAND, "job", *job, *where],
                capture_output=True,
                text=True,
                timeout=_WAIT_S_MAX,
                check=False,
            )
            assert done.returncode == 0, f"{job}: {done.stdout}\n{done.stderr[-4000:]}"
            assert json.loads(done.stdout)["ok"]
