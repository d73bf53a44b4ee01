"""Kafka's DumpLogSegments reads Millstream's files and finds nothing to complain about.

It walks every record of every `.log`, checks each `.index` and `.timeindex` entry against the
log, runs the checks that Kafka runs on indexes when it starts, and reads `.snapshot` files. It
complains on standard error. Two things it says of Kafka's own files too: that -1 is followed by
the first offset of a segment, and, after compaction, that offsets have gaps.
"""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients.confluent import ConfluentAdmin, ConfluentClient
from clients.contract import CODECS, Record, Settings
from locations import JARS

from harness.broker_process import BrokerProcess

WAIT_SECONDS_MAX = 60.0
SEGMENT_BYTES = 1 << 20
SOME_TIME = 1_700_000_000_000
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
GAP_TITLE = "Non-consecutive offsets in"
FIRST_OFFSET = re.compile(r"\s*-1 is followed by \d+")
GAP = re.compile(r"\s*\d+ is followed by \d+")


@pytest.fixture
def broker(tmp_path: Path, require_tool: Callable[[str], None]) -> Iterator[BrokerProcess]:
    require_tool("java")
    require_tool("jars")
    with BrokerProcess(tmp_path, {"log.cleaner.backoff.ms": 100}) as process:
        yield process


def dump(files: list[Path], *options: str, gaps_allowed: bool = False) -> str:
    """What the tool prints about the files; fails on any complaint."""
    names = ",".join(str(file) for file in files)
    command = [*JAVA, "org.apache.kafka.tools.DumpLogSegments", *options, "--files", names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    harmless = [FIRST_OFFSET, GAP] if gaps_allowed else [FIRST_OFFSET]
    complaints = [
        line
        for line in done.stderr.splitlines()
        if line.strip()
        and not line.startswith(GAP_TITLE)
        and not any(pattern.fullmatch(line) for pattern in harmless)
    ]
    assert (done.returncode, complaints) == (0, []), done.stderr[-3000:]
    assert "isvalid: false" not in done.stdout
    return done.stdout


def check_files(folder: Path, *, gaps_allowed: bool = False) -> str:
    """Puts every kind of check to every file of a partition; returns the dump of all of them."""
    kinds = {
        kind: sorted(folder.glob(f"*.{kind}")) for kind in ("log", "index", "timeindex", "snapshot")
    }
    indexes = kinds["index"] + kinds["timeindex"]
    everything = [file for files in kinds.values() for file in files]
    assert len(kinds["log"]) > 1, "the log was meant to roll"
    # Only the active segment may be without an index: it may have no entry yet.
    closed = {file.stem for file in kinds["log"][:-1]}
    assert closed <= {file.stem for file in kinds["index"]}
    assert closed <= {file.stem for file in kinds["timeindex"]}
    sane = dump(indexes, "--index-sanity-check")
    assert sane.count("passed sanity check") == len(indexes)
    return dump(everything, "--deep-iteration", gaps_allowed=gaps_allowed)


def fill(broker: BrokerProcess, topic: str, configs: dict[str, str]) -> int:
    """Creates the topic and writes segments of every codec, half of them idempotently."""
    shared = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1", **configs}
    ConfluentAdmin(broker.bootstrap).create_topic(topic, 1, shared)
    return write(broker, topic)


def value(number: int) -> bytes:
    """Compresses to half."""
    return random.Random(number).randbytes(900) * 2


def write(broker: BrokerProcess, topic: str) -> int:
    client = ConfluentClient(broker.bootstrap)
    count = 0
    for number, codec in enumerate(CODECS * 2):
        records = [
            Record(b"key-%d" % (i % 50), value(i), (("n", b"1"),), SOME_TIME + 1000 * i)
            for i in range(count, count + 250)
        ]
        for start in range(0, len(records), 50):
            part = records[start : start + 50]
            client.produce(topic, 0, part, Settings(codec=codec, idempotent=number % 2 == 0))
        count += len(records)
    client.close()
    return count


def last_offset_dumped(text: str) -> int:
    return max(
        int(line.split("lastOffset: ")[1].split()[0])
        for line in text.splitlines()
        if "lastOffset: " in line
    )


def test_after_a_clean_stop(broker: BrokerProcess) -> None:
    count = fill(broker, "plain", {})
    broker.stop()
    folder = broker.data / "plain-0"
    text = check_files(folder)
    dump(sorted(folder.glob("*.index")), "--verify-index-only")
    assert last_offset_dumped(text) == count - 1
    assert "producerId: " in text
    assert all(f"compresscodec: {codec}" in text.lower() for codec in CODECS)


def test_while_running_and_after_a_crash(broker: BrokerProcess) -> None:
    count = fill(broker, "crashed", {})
    check_files(broker.data / "crashed-0")
    broker.kill()
    broker.start()
    # The partition may be recovered when it is first touched.
    assert len(ConfluentClient(broker.bootstrap).consume("crashed", 0, count - 1, 1)) == 1
    text = check_files(broker.data / "crashed-0")
    assert last_offset_dumped(text) == count - 1


def test_before_and_after_compaction(broker: BrokerProcess) -> None:
    folder = broker.data / "compacted-0"
    count = fill(broker, "compacted", {"min.cleanable.dirty.ratio": "0.99"})
    text = check_files(folder)
    assert last_offset_dumped(text) == count - 1
    before = log_bytes(folder)
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "1000",
    }
    ConfluentAdmin(broker.bootstrap).alter_config("compacted", settings)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while log_bytes(folder) > before / 2 or unfinished(folder):
        assert time.monotonic() < deadline, "the log was not compacted"
        time.sleep(0.05)
    check_compacted(broker, folder)
    broker.kill()
    broker.start()
    check_compacted(broker, folder)


def check_compacted(broker: BrokerProcess, folder: Path) -> None:
    admin = ConfluentAdmin(broker.bootstrap)
    end = admin.list_offset("compacted", 0, "latest")
    found = ConfluentClient(broker.bootstrap).consume("compacted", 0, end - 1, 1)
    assert [record.offset for record in found] == [end - 1]
    text = check_compacted_files(folder)
    assert last_offset_dumped(text) == end - 1


def check_compacted_files(folder: Path) -> str:
    files = [
        file for kind in ("log", "index", "timeindex") for file in sorted(folder.glob(f"*.{kind}"))
    ]
    # An index that has no entry yet has nothing to check.
    written = [file for file in files if file.stat().st_size]
    dump([file for file in written if file.suffix != ".log"], "--index-sanity-check")
    return dump(written, "--deep-iteration", gaps_allowed=True)


def log_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.log"))


def unfinished(folder: Path) -> bool:
    return any(folder.glob("*.cleaned")) or any(folder.glob("*.swap"))
