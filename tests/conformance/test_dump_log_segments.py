"""Kafka's DumpLogSegments reads Millstream's files and reports no error.

It walks every record of every `.log`, checks each `.index` and `.timeindex` entry against the
log, runs the checks that Kafka runs on indexes when it starts, and reads `.txnindex` and
`.snapshot` files. It reports errors on standard error. Two reports also appear for Kafka's own
files: that -1 is followed by the first offset of a segment, and that offsets have gaps after
compaction.
"""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from clients.confluent import ConfluentAdmin, ConfluentClient
from clients.contract import CODECS, Record, Settings
from locations import JARS

from harness.in_process.log_home import NOW_MS, LogHome
from harness.process.broker_process import BrokerProcess
from millstream.log.compaction.cleaner import Cleaner, CleanerOptions
from millstream.log.log import PartitionLog
from millstream.model.config import TopicConfig
from millstream.records.batch import read_header
from millstream.records.builder import build_batch
from millstream.records.control import EndMarker
from millstream.records.record import Record as StoredRecord

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
    """Return the tool's output for the files; fail on any reported error."""
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
    """Run every kind of check on every file of a partition; return all output."""
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
    """Create the topic and write segments of every codec, half of them idempotently."""
    shared = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1", **configs}
    ConfluentAdmin(broker.bootstrap).create_topic(topic, 1, shared)
    return write(broker, topic)


def value(number: int) -> bytes:
    """Return a value that compresses to half its size."""
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
    return check_written_files(folder, "log", "index", "timeindex", gaps_allowed=True)


def check_written_files(folder: Path, *kinds: str, gaps_allowed: bool) -> str:
    files = [file for kind in kinds for file in sorted(folder.glob(f"*.{kind}"))]
    # An index that has no entry yet has nothing to check.
    written = [file for file in files if file.stat().st_size]
    indexes = [file for file in written if file.suffix in (".index", ".timeindex")]
    dump(indexes, "--index-sanity-check")
    return dump(written, "--deep-iteration", gaps_allowed=gaps_allowed)


def log_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.log"))


def unfinished(folder: Path) -> bool:
    return any(folder.glob("*.cleaned")) or any(folder.glob("*.swap"))


# Transactions, written to a log without a broker around it


@pytest.fixture
def transactions(tmp_path: Path, require_tool: Callable[[str], None]) -> Iterator[LogHome]:
    """A log of three segments: transactions of two producers, committed, aborted and one open."""
    require_tool("java")
    require_tool("jars")
    config = TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=1000,
        index_interval_bytes=100,
    )
    home = LogHome(tmp_path / "log", config)
    log = home.open()
    for number in range(4):
        send(log, 7, number, 2 * number)
        send(log, 8, number, 2 * number)
        end(log, 7, number, commit=True)
        if number % 2:
            log.roll()
        end(log, 8, number, commit=False)
    send(log, 7, 4, 8)
    log.flush()
    yield home
    if home.directory is not None:
        home.stop(clean=False)


def send(log: PartitionLog, producer_id: int, number: int, sequence: int) -> None:
    batch = build_batch(
        [
            StoredRecord(i, NOW_MS + number, b"%d-%d" % (producer_id, i), b"v" * 50, [])
            for i in range(2)
        ],
        producer_id=producer_id,
        producer_epoch=5,
        base_sequence=sequence,
        is_transactional=True,
    )
    log.append_as_leader(memoryview(batch), read_header(batch), 1)


def end(log: PartitionLog, producer_id: int, number: int, *, commit: bool) -> None:
    batch = log.prepare_marker(EndMarker(commit, 10 + number), producer_id, 5, 1)
    assert batch is not None
    log.append_as_leader(memoryview(batch), read_header(batch), 1)


def check_transactions(home: LogHome, *, gaps_allowed: bool = False) -> str:
    """Check every file of the log; the aborted transactions must be the log's own."""
    kinds = ("log", "index", "timeindex", "txnindex", "snapshot")
    text = check_written_files(home.log_path, *kinds, gaps_allowed=gaps_allowed)
    pattern = r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
    found = [tuple(map(int, one.groups())) for one in re.finditer(pattern, text)]
    assert home.directory is not None
    log = home.directory.get(home.partition)
    assert log is not None
    assert found == [tuple(one) for one in log.aborted_transactions(0, log.log_end_offset)]
    return text


def test_control_batches_and_aborted_transactions(transactions: LogHome) -> None:
    text = check_transactions(transactions)
    assert text.count("endTxnMarker: COMMIT") == text.count("endTxnMarker: ABORT") == 4
    assert [f"coordinatorEpoch: {10 + number}" in text for number in range(4)] == [True] * 4
    assert text.count("isControl: true") == 8
    assert text.count("lastStableOffset: ") == 4
    transactions.reopen(clean=False)
    assert check_transactions(transactions).count("lastStableOffset: ") == 4
    transactions.stop(clean=True)
    # Producer 7 has an open transaction, which is the last thing in the log.
    text = dump([sorted(transactions.log_path.glob("*.snapshot"))[-1]])
    assert re.search(r"producerId: 7 .*coordinatorEpoch: 13 currentTxnFirstOffset: .*24", text)
    assert re.search(r"producerId: 8 .*coordinatorEpoch: 13", text)


def test_compacted_transactions(transactions: LogHome) -> None:
    assert transactions.directory is not None
    log = transactions.directory.get(transactions.partition)
    assert log is not None

    def remove(paths: Iterable[Path], delay_ms: int) -> None:
        for path in paths:
            path.unlink()

    cleaner = Cleaner(
        transactions.directory, CleanerOptions(), lambda _: log.log_end_offset, remove
    )
    # Compaction removes the data, then gives markers a delete horizon, then removes them.
    for step in range(4):
        asyncio.run(cleaner.run_once())
        if step != 1:
            text = check_transactions(transactions, gaps_allowed=True)
            assert ("baseOffset: 4 " in text) == ("baseOffset: 5 " in text) == (step < 3)
            assert last_offset_dumped(text) == log.log_end_offset - 1
        transactions.clock.now_ms += 2000
        end(log, 7, 5 + step, commit=True)
        send(log, 7, 5 + step, 10 + 2 * step)
        log.roll()
        log.flush()
    assert cleaner.stats.failures == 0
