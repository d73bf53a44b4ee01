"""The moments at which brokers are killed."""

from __future__ import annotations

import random
import time

from harness.process.broker_process import BrokerProcess


def crash(broker: BrokerProcess, chance: random.Random) -> None:
    """Kill the broker at a random moment, and sometimes again while it recovers."""
    time.sleep(chance.uniform(0.02, 0.7))
    broker.kill()
    if chance.random() < 0.2:
        broker.start(wait=False)
        time.sleep(chance.uniform(0.1, 1.0))
        broker.kill()
    broker.start()
    time.sleep(chance.uniform(0, 0.2))
