"""`millstream worker scale` against a broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.process.broker_process import HOST, free_port, wait_until
from millstream import Consumer, Producer

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SECONDS_MAX = 60.0


@pytest.fixture
def group(broker: str, topic: str) -> str:
    """A group that has read 10 of 100 records."""
    name = f"scaled-{topic}"
    with Producer(broker) as producer:
        for number in range(100):
            producer.send(topic, str(number), partition=number % 3)
    with Consumer(broker, topics=[topic], group_id=name, commit_interval=0) as consumer:
        read = 0
        while read < 10:
            records = consumer.poll(10 - read, timeout=1.0)
            read += len(records)
        consumer.commit()
    return name


def test_the_number_as_text_json_and_metrics(ask: Run, group: str, tmp_path: Path) -> None:
    options = ["worker", "scale", "--group", group, "--state", str(tmp_path / "state.json")]
    options += ["--rate", "1/s", "--catch-up", "45s"]
    shown = json.loads(ask(*options, "--json").out)
    assert shown == {
        "group": group,
        "workers": 2,
        "needed": 2,
        "members": 0,
        "lag": 90,
        "rate": 1.0,
        "arrival_rate": None,
    }
    # From the second call on, the state has an arrival rate.
    assert ask(*options).out == (
        "2 workers  needed now 2, members 0, lag 90 records, arriving 0.0/s, one worker 1.0/s\n"
    )
    text = ask(*options, "--metric").out
    samples = {
        each.name: each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    assert samples["millstream_worker_scale_workers"] == 2
    assert samples["millstream_worker_scale_lag_records"] == 90


def test_fewer_workers_only_after_the_cool_down(ask: Run, group: str, tmp_path: Path) -> None:
    options = ["worker", "scale", "-g", group, "--state", str(tmp_path / "s"), "--json"]
    many, few = [*options, "--rate", "1/s", "--catch-up", "30s"], [*options, "--rate", "1000/s"]
    assert json.loads(ask(*many).out)["workers"] == 3
    shown = json.loads(ask(*few).out)
    assert (shown["workers"], shown["needed"]) == (3, 1)
    assert json.loads(ask(*few, "--cool-down", "0s").out)["workers"] == 1


def test_a_topic_counts_before_the_group_exists(ask: Run, topic: str, tmp_path: Path) -> None:
    options = ["worker", "scale", "--group", "none-yet", "--state", str(tmp_path / "s")]
    unknown = ask(*options)
    assert unknown.code == 3
    assert "no committed offsets" in unknown.error
    assert "Pass --topic" in unknown.error
    shown = json.loads(ask(*options, "--topic", topic, "--min", "0", "--json").out)
    assert (shown["workers"], shown["lag"]) == (0, 0)
    ask("produce", topic, stdin="a\nb\n")
    shown = json.loads(ask(*options, "--topic", topic, "--min", "0", "--json").out)
    assert (shown["workers"], shown["lag"]) == (1, 2)


def test_the_server(broker: str, group: str) -> None:
    address = f"{HOST}:{free_port()}"
    command = [sys.executable, "-m", "millstream.cli.main", "worker", "scale", "--group", group]
    command += ["--listen", address, "--interval", "1s", "-b", broker, "--rate", "1/s"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:

        def get(path: str) -> str:
            try:
                with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
                    return str(response.read().decode())
            except (urllib.error.HTTPError, OSError):
                return ""

        wait_until(lambda: get("/healthz") == "ok\n", "the server", SECONDS_MAX)
        assert json.loads(get("/"))["workers"] == 2
        expected = f'millstream_worker_scale_workers{{group="{group}"}} 2.0\n'
        assert expected in get("/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.communicate()


def test_wrong_usage(run: Run, tmp_path: Path) -> None:
    both = run("worker", "scale", "--group", "g", "--json", "--metric")
    assert both.code == 2
    assert "exclude each other" in both.error
    damaged = tmp_path / "state"
    damaged.write_text("[]")
    wrong = run("worker", "scale", "--group", "g", "--state", str(damaged), "-b", "127.0.0.1:1")
    assert wrong.code == 2
    assert "delete it" in wrong.error
    assert run("worker", "scale", "--group", "g", "--catch-up", "soon").code == 2
    nothing = run(
        "worker", "scale", "--group", "g", "--state", str(tmp_path / "n"), "-b", "127.0.0.1:1"
    )
    assert nothing.code == 4
