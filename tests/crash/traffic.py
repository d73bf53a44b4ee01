"""Producers that record what they sent and what the broker acknowledged.

Values are `<producer> <number>`, numbered per producer and partition in the order of sending.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

Target: TypeAlias = tuple[str, int]

DRAIN_SECONDS_MAX = 60.0
_BURST = 5
_PAUSE_S = 0.003
_FILLER = b" " + b"payload " * 12


def parse_value(value: bytes | None) -> tuple[str, int]:
    assert value is not None
    producer, number = value.split(b" ", 2)[:2]
    return producer.decode(), int(number)


class Traffic:
    """One producer in a thread of its own. An idempotent producer retries until it is
    acknowledged. Others use acks=1 and never retry, so that no record may be there twice."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        targets: Sequence[Target],
        *,
        codec: str,
        idempotent: bool,
        keys: int = 0,
    ) -> None:
        self.name = name
        self.idempotent = idempotent
        self._targets = targets
        self._keys = keys
        self._random = random.Random(name)
        #: Per partition: the number of records sent, and the offset of each acknowledged record;
        #: None where the broker knew only that it has the record.
        self.sent: dict[Target, int] = defaultdict(int)
        self.acknowledged: dict[Target, dict[int, int | None]] = defaultdict(dict)
        #: Per partition: the highest acknowledged offset.
        self._offsets: dict[Target, int] = defaultdict(lambda: -1)
        #: Per partition and key: the number of the last acknowledged value.
        self.last_of_key: dict[Target, dict[bytes, int]] = defaultdict(dict)
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "compression.type": codec,
            "linger.ms": 2,
            "batch.num.messages": 50,
            # Limits the records that queue up while the broker is down.
            "queue.buffering.max.messages": 1000,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 10,
            "message.timeout.ms": int(DRAIN_SECONDS_MAX * 1000),
            "log_level": 0,
            "error_cb": self._failed,
        }
        if idempotent:
            settings["enable.idempotence"] = True
        else:
            settings |= {"acks": 1, "retries": 0}
        self._producer = Producer(settings)

    def acknowledged_since(self, target: Target, first: int) -> dict[int, int | None]:
        """Return the acknowledged records from offset `first` on, by number."""
        found = self.acknowledged[target]
        after = -1
        for number, offset in found.items():
            if offset is not None and offset < first:
                after = max(after, number)
        return {number: offset for number, offset in found.items() if number > after}

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until every record is acknowledged or has failed."""
        assert self._thread is not None
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(DRAIN_SECONDS_MAX)
        assert left == 0, f"{self.name}: {left} records are neither acknowledged nor given up"
        assert not self.failures, self.failures

    def _run(self) -> None:
        while not self._stop.is_set():
            for _ in range(_BURST):
                self._send(self._random.choice(self._targets))
            self._producer.poll(0)
            time.sleep(_PAUSE_S)

    def _known(self, target: Target, offset: int | None) -> int | None:
        """Return the offset of a record, or None where the broker knew only that it has the batch.
        librdkafka then counts from -1, so the record seems to come before earlier records."""
        before = self._offsets[target]
        if offset is None or offset <= before:
            return None
        self._offsets[target] = offset
        return offset

    def _send(self, target: Target) -> None:
        number = self.sent[target]
        key = b"%d" % self._random.randrange(self._keys) if self._keys else None
        value = b"%s %d" % (self.name.encode(), number) + _FILLER

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged[target][number] = self._known(target, message.offset())
                if key is not None:
                    last = self.last_of_key[target]
                    last[key] = max(last.get(key, 0), number)
            elif self.idempotent:
                self.failures.append(f"{self.name}: {error}")

        try:
            self._producer.produce(
                target[0], value, key, partition=target[1], on_delivery=delivered
            )
        except BufferError:
            self._producer.poll(0.01)
            return
        except KafkaException as error:
            self.failures.append(f"{self.name}: {error}")
            self._stop.set()
            return
        self.sent[target] = number + 1

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(f"{self.name}: {error}")
