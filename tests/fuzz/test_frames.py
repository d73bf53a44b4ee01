"""Bad input of every kind: the broker survives, its memory stays bounded, and it serves others.

FUZZ_SEED repeats a run. FUZZ_FRAMES sets the length of the soak.
"""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import pytest

from fuzz.flood import flood
from fuzz.frames import COMPACTED_TOPIC, TOPICS, FrameSource
from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient, records_of, values_batch
from harness.seed import choose_seed, report

FRAMES_QUICK = 20_000
FRAMES_SOAK = int(os.environ.get("FUZZ_FRAMES", "250000"))
RSS_GROWTH_BYTES_MAX = 150 << 20
SETTINGS = {
    "auto.create.topics.enable": False,
    "max.partitions.per.topic": 4,
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
}
#: Log lines that mean an unexpected failure.
_UNEXPECTED = ("Traceback", "Exception in callback", "never retrieved", "Fatal error")


class Witness:
    """A well-behaved client on a connection of its own, which must not be disturbed."""

    TOPIC = "witness"

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = RawClient(broker.host, broker.port, timeout_s=30)
        self._client.create_topic(self.TOPIC)
        self.records = 0

    def check(self) -> None:
        value = b"%d" % self.records
        produced = self._client.produce(self.TOPIC, values_batch(value), acks=1)
        assert (produced.error_code, produced.base_offset) == (0, self.records)
        fetched = self._client.fetch(self.TOPIC, self.records)
        assert fetched.error_code == 0
        found = [(record.offset, record.value) for record in records_of(fetched.records)]
        assert found == [(self.records, value)]
        self.records += 1

    def check_all(self) -> None:
        values = [record.value for record in self._client.read_all(self.TOPIC)]
        assert values == [b"%d" % n for n in range(self.records)]

    def close(self) -> None:
        self._client.close()


def prepare_topics(broker: BrokerProcess) -> list[bytes]:
    with RawClient(broker.host, broker.port) as client:
        ids = [client.create_topic(COMPACTED_TOPIC, 2, {"cleanup.policy": "compact"})]
        ids += [client.create_topic(name, 2) for name in TOPICS[1:5]]
    return ids


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(FRAMES_QUICK, id="quick"),
        pytest.param(FRAMES_SOAK, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_bad_frames_do_not_affect_other_clients(tmp_path: Path, frames: int) -> None:
    seed = choose_seed("FUZZ_SEED")
    with BrokerProcess(tmp_path, SETTINGS) as broker, closing(Witness(broker)) as witness:
        source = FrameSource(seed, prepare_topics(broker))
        witness.check()
        rss_before = rss_most = broker.rss_bytes()

        def check() -> None:
            nonlocal rss_most
            assert broker.is_alive(), "the broker died"
            rss_most = max(rss_most, broker.rss_bytes())
            witness.check()

        flood((broker.host, broker.port), source, frames, random.Random(seed), check)
        witness.check_all()
        grown = broker.rss_bytes() - rss_before
        report(
            f"rss MiB: {rss_before >> 20} before, {rss_most >> 20} at most, +{grown >> 20} after"
        )
        text = broker.log_text()
        for phrase in _UNEXPECTED:
            position = text.find(phrase)
            assert position < 0, text[max(position - 500, 0) : position + 3500]
        assert grown < RSS_GROWTH_BYTES_MAX
        broker.stop()
        broker.start()
        with RawClient(broker.host, broker.port) as client:
            assert len(client.read_all(Witness.TOPIC)) == witness.records
