"""Work queues on a topic: handlers with retries, dead letters and parallelism per key.

The package owns attempts, their order, the offsets that may be committed, and the topics for
retries and delayed messages. It leaves reading and sending to the consumer and the producer.
"""

from __future__ import annotations

from millstream.client.worker.failure import DeadlinePassed, ProcessDied
from millstream.client.worker.hint import Hint
from millstream.client.worker.message.job import Job
from millstream.client.worker.policy.breaker import Breaker
from millstream.client.worker.worker import Worker

__all__ = ["Breaker", "DeadlinePassed", "Hint", "Job", "ProcessDied", "Worker"]
