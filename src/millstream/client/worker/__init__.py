"""Work queues on a topic: handlers with retries, dead letters and parallelism per key."""

from __future__ import annotations

from millstream.client.worker.breaker import Breaker
from millstream.client.worker.hint import Hint
from millstream.client.worker.job import Job
from millstream.client.worker.job_queue import DeadlinePassed, ProcessDied
from millstream.client.worker.worker import Worker

__all__ = ["Breaker", "DeadlinePassed", "Hint", "Job", "ProcessDied", "Worker"]
