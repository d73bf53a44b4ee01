"""An input topic, its processor, and the output topic.

Owns the processes, and replaces a processor that died. The test decides which process is killed and
when.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from harness.process.broker_process import wait_until
from harness.process.brokers import Brokers
from harness.raw.raw_transaction import GROUP, TRANSACTION
from transactions_clients.actor import connection, reader_settings
from transactions_clients.processor import POINT_SECONDS_MAX, Processor, Reached, StuckError
from transactions_clients.program import Program

INPUT, OUTPUT = "input", "output"
PARTITIONS = 12
TRANSACTIONAL_ID, GROUP_ID = "processor", "group"
READ_SECONDS_MAX = 60.0
FINISH_SECONDS_MAX = 120.0

#: Partition and offset.
Place: TypeAlias = tuple[int, int]


class Work:
    """The inputs, the current processor, and the ends of earlier ones.

    With `patience_s`, a processor that is silent for that long is killed and replaced; without it,
    the test fails."""

    def __init__(
        self, brokers: Brokers, program: Program, folder: Path, patience_s: float | None = None
    ) -> None:
        self._brokers = brokers
        self._patience_s = patience_s
        self._program = program
        self._folder = folder
        self._attempts = 0
        self._processor: Processor | None = None
        self._producer = Producer(connection(brokers.bootstrap))
        self.inputs: list[list[str]] = [[] for _ in range(PARTITIONS)]
        #: Keys of transactions whose processor died before EndTxn, with the number of sent records.
        self.aborted: dict[str, int] = {}
        self._broker_died = False

    def add_inputs(self, count: int) -> None:
        for _ in range(count):
            number = sum(map(len, self.inputs))
            partition = number % PARTITIONS
            self.inputs[partition].append(str(number))
            self._producer.produce(INPUT, str(number), partition=partition)
        assert self._producer.flush(30) == 0

    def advance(self) -> Reached:
        """Return the next point of the processor, or of its replacement if it has exited."""
        while True:
            processor = self._employed()
            try:
                reached = processor.next_point(self._patience_s or POINT_SECONDS_MAX)
            except StuckError:
                if self._patience_s is None:
                    raise
                self._replace_processor()
                continue
            if reached is not None:
                return reached
            self._dismiss(processor)

    def _dismiss(self, processor: Processor) -> None:
        """Handle a processor that has exited, which it may do after a broker died."""
        assert self._broker_died, f"it ended by itself: {processor.last_words()}"
        self.kill_processor()

    def _employed(self) -> Processor:
        if self._processor is None:
            self._attempts += 1
            arguments = [self._brokers.bootstrap, TRANSACTIONAL_ID, GROUP_ID, INPUT, OUTPUT]
            self._processor = Processor(self._program, arguments, self._attempts, self._folder)
        return self._processor

    def go(self) -> None:
        assert self._processor is not None
        self._processor.go()

    def kill_processor(self) -> None:
        if self._processor is not None:
            self._processor.kill()
            self._processor = None
            self._broker_died = False

    def _replace_processor(self) -> None:
        """Kill the processor. Its replacement may still exit because of the killed broker."""
        died = self._broker_died
        self.kill_processor()
        self._broker_died = died

    def kill_broker(self, *, spares_group: bool = False) -> int:
        """Kill the coordinator of the processor's transactions; the caller restarts it.

        With `spares_group`, the group's coordinator is not killed, unless it is the only broker. If
        it coordinates the transactions too, another broker is killed instead.
        """
        node_id = self._brokers.coordinator(TRANSACTIONAL_ID, TRANSACTION)
        if spares_group and len(self._brokers) > 1:
            spared = self._brokers.coordinator(GROUP_ID, GROUP)
            others = [each for each in self._brokers.node_ids if each != spared]
            node_id = node_id if node_id in others else others[0]
        self._brokers.kill(node_id)
        self._broker_died = True
        return node_id

    def finish(self) -> None:
        """Let the processor work without faults until all inputs are processed."""
        wanted = sorted(value for values in self.inputs for value in values)
        heard_at = time.monotonic()

        def is_done() -> bool:
            nonlocal heard_at
            processor = self._employed()
            if processor.has_news():
                if processor.next_point() is None:
                    # All inputs may be processed; then a replacement would reach no point.
                    self._dismiss(processor)
                else:
                    self.go()
                heard_at = time.monotonic()
                return False
            if self._patience_s and time.monotonic() > heard_at + self._patience_s:
                self._replace_processor()
                heard_at = time.monotonic()
                return False
            found = read_records(self._brokers.bootstrap, committed=True)
            return sorted(value for _, value in found.values()) == wanted

        wait_until(is_done, "every input to be in the output exactly once", FINISH_SECONDS_MAX)


def read_records(bootstrap: str, *, committed: bool) -> dict[Place, tuple[str, str]]:
    """Return all records of the output: `(partition, offset)` to `(key, value)`."""
    consumer = Consumer(
        {
            **reader_settings(bootstrap, committed=committed),
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(OUTPUT, number, 0) for number in range(PARTITIONS)])
    found: dict[Place, tuple[str, str]] = {}
    left = set(range(PARTITIONS))
    deadline = time.monotonic() + READ_SECONDS_MAX
    while left:
        assert time.monotonic() < deadline, f"partitions {left} were not read to the end"
        for message in consumer.consume(500, 0.2):
            error = message.error()
            if error is None:
                place = (message.partition(), message.offset())
                found[place] = (message.key().decode(), message.value().decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
    consumer.close()
    return found
