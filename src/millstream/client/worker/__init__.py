"""Work queues on a topic: handlers with retries, dead letters and parallelism per key.

The package owns attempts, their order, the offsets that may be committed, and the topics for
retries, delayed messages and periodic jobs. It leaves reading and sending to the consumer and the
producer.

    worker, session, topics    the public class, one membership in the group, the topics it needs
    handler/    what is called: routes, typed payloads, threads and tasks
    message/    a message and its headers, and the job that a handler sees
    queue/      what may start, and what may be committed
    policy/     settings, retries, circuit breaker, rate limits
    publish/    output and offsets, with and without transactions
    cron/       periodic jobs
"""

from __future__ import annotations

from millstream.client.worker.failure import (
    DeadlinePassed,
    InvalidPayload,
    MessageExpired,
    ProcessDied,
)
from millstream.client.worker.hint import Hint
from millstream.client.worker.message.job import Job
from millstream.client.worker.policy.breaker import Breaker
from millstream.client.worker.worker import Worker

__all__ = [
    "Breaker",
    "DeadlinePassed",
    "Hint",
    "InvalidPayload",
    "Job",
    "MessageExpired",
    "ProcessDied",
    "Worker",
]
