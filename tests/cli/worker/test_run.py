"""`millstream worker run` with real processes and real signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from harness.process.broker_process import wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Run
    from tests.cli.worker.conftest import Running, Start

SECONDS_MAX = 60.0


def send(ask: Run, topic: str, *values: str) -> None:
    sent = ask("produce", topic, stdin="".join(f"{value}\n" for value in values))
    assert sent.code == 0, sent


def lag(ask: Run, group: str) -> int:
    found: int = json.loads(ask("group", "describe", group, "--json").out)["lag"]
    return found


def wait_for(running: Running, count: int) -> None:
    wait_until(
        lambda: len(running.seen()) >= count or running.has_ended(), f"{count} jobs", SECONDS_MAX
    )
    assert not running.has_ended(), running.log()


def test_processes_share_the_work_and_drain_at_sigterm(
    ask: Run, topic: str, group: str, start: Start
) -> None:
    running = start("--processes", "2")
    running.wait_ready()
    assert running.get("/healthz") == (200, "ok\n")
    assert running.get("/other")[0] == 404
    send(ask, topic, *map(str, range(40)), "fail")
    wait_for(running, 41)
    wait_until(
        lambda: running.metric("millstream_worker_jobs_done_total") == 40, "the count", SECONDS_MAX
    )
    assert running.metric("millstream_worker_jobs_dead_total") == 1
    assert running.metric("millstream_worker_attempts_failed_total") == 1
    assert running.metric("millstream_worker_processes") == 2
    assert running.metric("millstream_worker_job_duration_seconds_count") == 41
    wait_until(
        lambda: "millstream_worker_lag_records" in running.get("/metrics")[1], "lag", SECONDS_MAX
    )
    assert f'group="{group}"' in running.get("/metrics")[1]
    # One job is in progress when the signal comes.
    send(ask, topic, "wait")
    wait_until(
        lambda: running.metric("millstream_worker_jobs_in_progress") == 1, "the job", SECONDS_MAX
    )
    running.signal(signal.SIGTERM)
    wait_until(lambda: running.get("/readyz")[0] == 503, "draining", SECONDS_MAX)
    assert "finish their jobs" in running.get("/readyz")[1]
    (running.folder / "gate").touch()
    assert running.exit_code() == 0, running.log()
    assert lag(ask, group) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_the_second_signal_kills_the_processes(
    ask: Run, topic: str, group: str, start: Start, number: signal.Signals
) -> None:
    running = start()
    running.wait_ready()
    send(ask, topic, "wait")
    wait_for(running, 1)
    [child] = running.children()
    running.signal(number)
    wait_until(lambda: running.get("/readyz")[0] == 503, "draining", SECONDS_MAX)
    assert child.is_running()
    running.signal(number)
    assert running.exit_code() == 130, running.log()
    assert not child.is_running()
    assert lag(ask, group) == 1


def test_a_dead_process_is_restarted(ask: Run, topic: str, start: Start) -> None:
    """Its counters stay in the sums."""
    running = start("--processes", "2")
    running.wait_ready()
    send(ask, topic, *map(str, range(20)))
    done = "millstream_worker_jobs_done_total"
    wait_until(lambda: running.metric(done) == 20, "the jobs", SECONDS_MAX)
    before = {child.pid for child in running.children()}
    for child in running.children():
        child.kill()
    wait_until(
        lambda: running.metric("millstream_worker_process_restarts_total") == 2,
        "the restarts",
        SECONDS_MAX,
    )
    assert running.metric(done) == 20
    running.wait_ready()
    assert before.isdisjoint(child.pid for child in running.children())
    assert "was killed by SIGKILL. It is restarted in 1 s." in running.log()
    send(ask, topic, *map(str, range(5)))
    # What was not committed when the processes died runs again.
    wait_until(lambda: running.metric(done) >= 25, "more jobs", SECONDS_MAX)
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0, running.log()


def test_processes_end_without_their_supervisor(ask: Run, topic: str, start: Start) -> None:
    running = start()
    running.wait_ready()
    children = running.children()
    running.process.kill()
    _, alive = psutil.wait_procs(children, timeout=SECONDS_MAX)
    assert alive == []
    assert "The supervisor is gone" in running.log()


def test_a_change_of_the_source_reloads_the_worker(
    ask: Run, topic: str, start: Start, jobs: Path
) -> None:
    running = start("--reload")
    running.wait_ready()
    send(ask, topic, "a")
    wait_for(running, 1)
    source = jobs.read_text()
    # A file that cannot be imported: the command waits for the next change.
    jobs.write_text("worker = 1\n")
    wait_until(lambda: "change its files to try again" in running.log(), "the error", SECONDS_MAX)
    assert "jobs:worker is a int, not a Worker; it has no Worker." in running.log()
    jobs.write_text(source.replace('"first"', '"second"'))
    send(ask, topic, "b")
    wait_for(running, 2)
    assert [each[1:] for each in running.seen()] == [("first", "a"), ("second", "b")]
    running.signal(signal.SIGINT)
    assert running.exit_code() == 0, running.log()


@pytest.mark.parametrize(
    ("target", "code", "complaint"),
    [
        ("nowhere.jobs:worker", 3, "module 'nowhere.jobs' was not found"),
        ("jobs:other", 2, "module 'jobs' has no 'other'; its workers are worker."),
        ("jobs:handle", 2, "jobs:handle is a function, not a Worker; its workers are worker."),
        ("jobs:bare", 2, "The worker has no handler: pass handler="),
        (":worker", 2, "is not MODULE:WORKER"),
    ],
)
def test_a_target_that_cannot_run(
    start: Start, jobs: Path, target: str, code: int, complaint: str
) -> None:
    with jobs.open("a") as file:
        file.write('\nif "bare" in __import__("sys").argv[1]:\n')
        file.write('    bare = Worker(topics=["a"], group_id="g")\n')
    running = start(target=target)
    assert running.exit_code() == code, running.log()
    assert complaint in running.log()
    assert "restarted" not in running.log()
    assert "signal" not in running.log()


def test_wrong_addresses(run: Run) -> None:
    wrong = run("worker", "run", "jobs:worker", "--metrics", "9645")
    assert wrong.code == 2
    assert "'9645' is not HOST:PORT" in wrong.error
    taken = run("worker", "run", "jobs:worker", "--metrics", "192.0.2.1:1")
    assert taken.code == 1
    assert "cannot listen on 192.0.2.1:1" in taken.error
