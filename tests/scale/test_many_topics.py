"""Very many topics on one broker: all are usable, and unused topics cost next to nothing.

The soak prints the times of creation, shutdown, start and metadata requests. SCALE_TOPICS sets its
size, SCALE_SAMPLE the number of topics that are written to.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient, values_batch
from harness.seed import report
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.metadata import MetadataRequest

TOPICS_QUICK = 3_000
TOPICS_SOAK = int(os.environ.get("SCALE_TOPICS", "100000"))
PER_REQUEST = 1_000
SAMPLE = int(os.environ.get("SCALE_SAMPLE", "300"))
QUESTIONS = 300
OPEN_FILES_MAX = 100
#: Files of sockets, the metadata store and the event loop.
OTHER_DESCRIPTORS_MAX = 60
MEMORY_BYTES_MAX = 3 << 29


@dataclass
class Figures:
    """Measured values, in the order of measurement."""

    lines: list[str] = field(default_factory=list)

    def note(self, what: str, value: str) -> None:
        self.lines.append(f"{what:<44}{value:>14}")
        report(self.lines[-1])

    def note_process(self, when: str, broker: BrokerProcess) -> None:
        self.note(f"memory, {when}", f"{broker.rss_bytes() / 2**20:.0f} MiB")
        self.note(f"descriptors, {when}", str(broker.open_descriptors()))


def name_of(number: int) -> str:
    return f"topic-{number:06d}"


def create_all(client: RawClient, topics: int) -> None:
    for start in range(0, topics, PER_REQUEST):
        numbers = range(start, min(start + PER_REQUEST, topics))
        wanted = [
            CreateTopicsRequest.Topic(name=name_of(n), num_partitions=1, replication_factor=1)
            for n in numbers
        ]
        response = client.call(CreateTopicsRequest(topics=wanted))
        assert {row.error_code for row in response.topics} == {0}
        assert len(response.topics) == len(numbers)


def metadata_ms(client: RawClient, topics: int) -> list[float]:
    """Return how long a Metadata request for one topic takes, for some topics."""
    chance = random.Random(1)
    took = []
    for _ in range(QUESTIONS):
        wanted = [MetadataRequest.Topic(name=name_of(chance.randrange(topics)))]
        started = time.perf_counter()
        response = client.call(MetadataRequest(topics=wanted))
        took.append((time.perf_counter() - started) * 1000)
        assert response.topics[0].error_code == 0
    return sorted(took)


def note_metadata(figures: Figures, client: RawClient, topics: int) -> None:
    took = metadata_ms(client, topics)
    text = f"{statistics.median(took):.2f}/{took[int(len(took) * 0.99)]:.2f} ms"
    figures.note("metadata of one topic, p50/p99", text)


def count_topics(client: RawClient) -> int:
    return len(client.call(MetadataRequest(topics=None)).topics)


def start(broker: BrokerProcess, figures: Figures, what: str) -> None:
    started = time.perf_counter()
    broker.start()
    figures.note(f"start after {what}", f"{time.perf_counter() - started:.1f} s")
    figures.note_process(f"after that ({what})", broker)


def use_sample(client: RawClient, topics: int, expected: int) -> None:
    """Produce to some topics and read them; each has `expected` records afterwards."""
    for number in random.Random(2).sample(range(topics), SAMPLE):
        topic = name_of(number)
        value = b"%d" % (expected - 1)
        assert client.produce(topic, values_batch(value)).base_offset == expected - 1
        values = [record.value for record in client.read_all(topic)]
        assert values == [b"%d" % n for n in range(expected)]


def walk_through(broker: BrokerProcess, topics: int) -> Figures:
    figures = Figures()
    start(broker, figures, "nothing")
    with RawClient(broker.host, broker.port, timeout_s=300) as client:
        started = time.perf_counter()
        create_all(client, topics)
        figures.note(f"creating {topics} topics", f"{time.perf_counter() - started:.1f} s")
        figures.note_process("after creating", broker)
        note_metadata(figures, client, topics)
        started = time.perf_counter()
        use_sample(client, topics, 1)
        figures.note(f"first use of {SAMPLE} topics", f"{time.perf_counter() - started:.1f} s")
        figures.note_process("after that", broker)
        started = time.perf_counter()
        assert count_topics(client) == topics
        figures.note("metadata of all topics", f"{time.perf_counter() - started:.2f} s")
    for round_number, how in enumerate(["a clean stop", "a kill"], 2):
        if how == "a kill":
            broker.kill()
        else:
            started = time.perf_counter()
            broker.stop(seconds_max=300)
            figures.note("clean stop", f"{time.perf_counter() - started:.1f} s")
        start(broker, figures, how)
        with RawClient(broker.host, broker.port, timeout_s=300) as client:
            note_metadata(figures, client, topics)
            use_sample(client, topics, round_number)
            assert count_topics(client) == topics
            wait_until(
                lambda: broker.open_descriptors() < OPEN_FILES_MAX + OTHER_DESCRIPTORS_MAX,
                "files that are not needed to be closed",
            )
    return figures


def new_broker(folder: Path) -> BrokerProcess:
    settings = {"log.open.files.max": OPEN_FILES_MAX}
    return BrokerProcess(folder, settings, start_seconds_max=300)


def test_thousands_of_topics(tmp_path: Path) -> None:
    broker = new_broker(tmp_path)
    try:
        walk_through(broker, TOPICS_QUICK)
        with RawClient(broker.host, broker.port, timeout_s=60) as client:
            names = [name_of(n) for n in range(0, TOPICS_QUICK, 2)]
            response = client.call(DeleteTopicsRequest(topic_names=names), 5)
            assert {row.error_code for row in response.responses} == {0}
            assert count_topics(client) == TOPICS_QUICK - len(names)
        broker.stop()
        broker.start()
        with RawClient(broker.host, broker.port, timeout_s=60) as client:
            assert count_topics(client) == TOPICS_QUICK - len(names)
            client.create_topic(name_of(0))
            assert client.produce(name_of(0), values_batch(b"new")).base_offset == 0
        assert "Traceback" not in broker.log_text()
    finally:
        broker.kill()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_topics(tmp_path: Path) -> None:
    broker = new_broker(tmp_path)
    try:
        walk_through(broker, TOPICS_SOAK)
        assert broker.rss_bytes() < MEMORY_BYTES_MAX
    finally:
        broker.kill()
