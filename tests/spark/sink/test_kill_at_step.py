"""The output of a query under real Spark is exact if its driver or executors are killed at any
step, and if its tasks run more than once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from harness.process.broker_process import wait_until
from harness.process.spark_cluster import SparkCluster
from harness.seed import choose_seed
from spark.sink.copy_harness import SECONDS_MAX, Copy, Driver
from spark.sink.step_hook import environment

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]

STEPS = (
    "task-begin",
    "task-writing",
    "task-written",
    "task-prepared",
    "commit-begin",
    "decision-written",
    "decided",
    "between-commits",
    "committed",
    "abort-begin",
    "between-aborts",
)
TESTS = Path(__file__).parents[2]


class Faults:
    """The folder of faults that `step_hook.kill_at` reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "faults"
        self._folder.mkdir()
        self.environment = environment(self._folder)

    def arm(self, step: str, pids: list[int]) -> None:
        """Kill these processes, and then the process that reaches the step first."""
        made = self._folder / f"{step}.made"
        made.write_text(" ".join(map(str, pids)))
        made.rename(self._folder / step)

    def is_reached(self, step: str) -> bool:
        return not (self._folder / step).exists()


def victims(driver: Driver, kind: str) -> list[int]:
    found = []
    if "executors" in kind:
        found += driver.executors()
    if "driver" in kind:
        found += driver.core()
    return [each.pid for each in found]


@pytest.mark.parametrize("kind", ["driver and executors", "executors"])
def test_output_is_exact_whatever_is_killed_at_a_step(tmp_path: Path, kind: str) -> None:
    faults = Faults(tmp_path)
    with Copy(tmp_path, faults.environment) as copy:
        for step in STEPS:
            copy.feed()
            copy.wait_for_rows(copy.rows)
            wait_until(lambda: len(copy.driver.executors()) == 2, "two executors", SECONDS_MAX)
            if "abort" in step:
                faults.arm("commit-begin", [])
            faults.arm(step, victims(copy.driver, kind))
            copy.feed()
            wait_until(lambda step=step: faults.is_reached(step), f"{step} to be reached", 300)
            if "driver" in kind:
                wait_until(lambda: not copy.driver.is_alive(), "the driver's death")
        assert copy.finish() == copy.expected()


def test_output_is_exact_when_a_paused_driver_resumes_after_it_was_replaced(
    tmp_path: Path,
) -> None:
    """Both drivers share a checkpoint; the first is paused in the middle of a batch."""
    chooser = random.Random(choose_seed("SINK_SEED"))
    with Copy(tmp_path) as copy:
        for _ in range(3):
            copy.feed(2)
            copy.wait_for_rows(copy.rows)
            copy.feed()
            copy.wait_for_batch()
            time.sleep(chooser.uniform(0, copy.checkpoint.seconds_of_a_batch()))
            copy.driver.pause()
            zombie = copy.replace_driver()
            copy.feed()
            copy.wait_for_rows(copy.rows)
            failures = zombie.failures()
            zombie.resume()
            copy.feed(2)
            wait_until(
                lambda zombie=zombie, before=failures: zombie.failures() > before,
                "the zombie to find out",
                SECONDS_MAX,
            )
            zombie.close()
        assert copy.finish() == copy.expected()


def test_output_is_exact_when_a_stage_is_retried(tmp_path: Path) -> None:
    """An executor dies and loses its shuffle output."""
    faults = Faults(tmp_path)
    with Copy(
        tmp_path, faults.environment, is_shuffled=True, config={"spark.log.level": "WARN"}
    ) as copy:
        for step in ("task-begin", "task-prepared"):
            copy.feed()
            copy.wait_for_rows(copy.rows)
            wait_until(lambda: len(copy.driver.executors()) == 2, "two executors", SECONDS_MAX)
            faults.arm(step, victims(copy.driver, "executors")[:1])
            copy.feed()
            wait_until(lambda step=step: faults.is_reached(step), f"{step} to be reached", 300)
        assert copy.finish() == copy.expected()
        assert "FetchFailed" in copy.driver.log_path.read_text(errors="replace")


def test_output_is_exact_when_a_slow_task_runs_twice_concurrently(tmp_path: Path) -> None:
    """Spark starts a second attempt of a slow task, and uses the attempt that ends first."""
    brake = tmp_path / "brake"
    config = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "200s",
        "spark.executorEnv.PYTHONPATH": str(TESTS),
    }
    brake.touch()
    with (
        SparkCluster(tmp_path, are_apart=True) as cluster,
        Copy(
            tmp_path,
            {"SPARK_LOCAL_IP": "127.0.0.1"},
            master=cluster.master,
            brake=str(brake),
            config=config,
        ) as copy,
    ):
        for _ in range(3):
            again = brake.with_suffix(".again")
            again.unlink(missing_ok=True)
            copy.feed()
            copy.wait_for_rows(copy.rows)
            assert again.exists(), "no task ran twice"
        brake.unlink()
        copy.feed()
        assert copy.finish() == copy.expected()
