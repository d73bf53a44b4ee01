"""Damaged files under a real broker: it starts, serves intact data, and reports the damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient, values_batch
from harness.seed import choose_seed
from millstream.model.error import ErrorCode
from millstream.records.batch import scan

TOPIC = "t"
BATCHES = 60
SEGMENT_BYTES = 2000


def fill(broker: BrokerProcess) -> list[bytes]:
    values = []
    with RawClient(broker.host, broker.port) as client:
        client.create_topic(TOPIC, 1, {"segment.bytes": SEGMENT_BYTES, "index.interval.bytes": 100})
        for n in range(BATCHES):
            values.append(b"%d-" % n + bytes([n]) * 100)
            assert client.produce(TOPIC, values_batch(values[-1])).base_offset == n
    return values


def log_files(broker: BrokerProcess, suffix: str = "log") -> list[Path]:
    return sorted((broker.data / f"{TOPIC}-0").glob(f"*.{suffix}"))


def cut_in_half(broker: BrokerProcess) -> None:
    last = log_files(broker)[-1]
    data = last.read_bytes()
    start = scan(data)[-1][0]
    last.write_bytes(data[: (start + len(data)) // 2])


def flip_in_last(broker: BrokerProcess) -> None:
    last = log_files(broker)[-1]
    data = bytearray(last.read_bytes())
    data[-7] ^= 0x10
    last.write_bytes(data)


def remove_indexes(broker: BrokerProcess) -> None:
    for suffix in ("index", "timeindex", "snapshot"):
        for file in log_files(broker, suffix):
            file.unlink()


@pytest.mark.parametrize(
    ("damage", "lost"), [(cut_in_half, 1), (flip_in_last, 1), (remove_indexes, 0)]
)
def test_a_damaged_end_is_repaired_at_the_start(
    tmp_path: Path, damage: Callable[[BrokerProcess], None], lost: int
) -> None:
    with BrokerProcess(tmp_path) as broker:
        values = fill(broker)
        broker.kill()
        damage(broker)
        broker.start()
        with RawClient(broker.host, broker.port) as client:
            kept = values[: BATCHES - lost]
            assert [record.value for record in client.read_all(TOPIC)] == kept
            assert client.produce(TOPIC, values_batch(b"next")).base_offset == len(kept)
            assert client.read_all(TOPIC)[-1].value == b"next"
        broker.stop()


def test_damage_in_old_segments_is_reported_and_never_served(tmp_path: Path) -> None:
    chance = random.Random(choose_seed("CRASH_SEED"))
    with BrokerProcess(tmp_path) as broker:
        values = fill(broker)
        broker.stop()
        oldest = log_files(broker)[1]
        data = bytearray(oldest.read_bytes())
        position, header = chance.choice(scan(data))
        data[chance.randrange(position + 21, position + header.size)] ^= 1 << chance.randrange(8)
        oldest.write_bytes(data)
        broker.start()
        damaged = header.base_offset
        with RawClient(broker.host, broker.port) as client:
            for offset in range(BATCHES):
                row = client.fetch(TOPIC, offset, max_bytes=1)
                if offset == damaged:
                    assert row.error_code in (
                        ErrorCode.CORRUPT_MESSAGE,
                        ErrorCode.KAFKA_STORAGE_ERROR,
                    )
                    assert not row.records
                else:
                    assert row.error_code == 0
                    assert values[offset] in bytes(row.records)
            assert client.produce(TOPIC, values_batch(b"next")).base_offset == BATCHES
        assert oldest.name in broker.log_text()
        assert "damage" in broker.log_text()
