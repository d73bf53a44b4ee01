"""Producers whose batches have some bad records, on one broker and on three: they tell bad records
from good ones, and lose no record of later batches.

Each test fills batches of three records, keeps several in flight, and compares what the producer
reports for each record with what is in the log.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from locations import FOLDER, JARS

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_client import RawClient
from harness.tool.java import compile_java
from harness.topic_content import read_messages
from millstream.records.validation import MESSAGES_MAX

pytestmark = pytest.mark.xdist_group("record-errors")

JVM = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
SECONDS_MAX = 90.0
ATTEMPTS_MAX = 3
TWO_HOURS_MS = 7_200_000
PER_BATCH = 3
COUNT = 60
#: Two in each bad batch: librdkafka treats a single bad record as an error of the whole batch. The
#: producer's first batch is bad, two batches in a row are bad, and the last one is.
BAD = frozenset({0, 2, 3, 4, 15, 16, 19, 20, 58, 59})

NAMED, NEIGHBOUR, STORED = "named", "neighbour", "stored"
TOPICS = {"key": {"cleanup.policy": "compact"}, "future": {}}


class Task(NamedTuple):
    bootstrap: str
    topic: str
    mode: str
    flaw: str
    #: Good records that are acknowledged first, so that the partition knows the producer.
    before: int = 0
    per_batch: int = PER_BATCH
    count: int = COUNT
    bad: frozenset[int] = BAD


class Outcome(NamedTuple):
    #: What the producer reports for each record: NAMED, NEIGHBOUR, STORED, or another error.
    records: dict[int, str]
    #: The producer's message for a record that the broker names.
    messages: dict[int, str]
    #: "committed" and "aborted", of each transaction.
    ends: list[str]


Writer = Callable[[Task], Outcome]


# The clients


@pytest.fixture(scope="session")
def java_writer(
    require_tool: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
) -> Writer:
    for tool in ("java", "jars"):
        require_tool(tool)
    classes = tmp_path_factory.mktemp("classes")
    compile_java(FOLDER / "java" / "RecordErrors.java", classes, "jars")

    def write(task: Task) -> Outcome:
        arguments = [task.bootstrap, task.topic, task.mode, task.per_batch, task.count]
        arguments += [",".join(map(str, sorted(task.bad))), task.flaw, task.before]
        process = subprocess.run(
            [*JVM, "-cp", f"{classes}:{JARS}/*", "RecordErrors", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert process.returncode == 0, process.stderr
        return _parse_java(process.stdout)

    return write


def _parse_java(output: str) -> Outcome:
    outcome = Outcome({}, {}, [])
    for line in output.splitlines():
        if not line[0].isdigit():
            outcome.ends.append(line.split()[0])
            continue
        index, kind, text = line.split(" ", 2)
        if kind == "offset":
            said = STORED
        elif kind in ("InvalidRecordException", "InvalidTimestampException"):
            said = NAMED
            outcome.messages[int(index)] = text
        elif kind == "KafkaException" and "part of a batch" in text:
            said = NEIGHBOUR
        else:
            said = line
        outcome.records[int(index)] = said
    return outcome


class _Librdkafka:
    """One run of a librdkafka producer."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._is_transactional = task.mode == "transactional"
        settings: dict[str, Any] = {
            "bootstrap.servers": task.bootstrap,
            "batch.num.messages": task.per_batch,
            # A batch leaves when it is full, or with a flush.
            "linger.ms": 20_000,
            "enable.idempotence": task.mode != "plain",
        }
        if self._is_transactional:
            settings["transactional.id"] = f"writer-of-{task.topic}"
        self._producer = Producer(settings)
        self.outcome = Outcome({}, {}, [])

    def run(self) -> None:
        task = self._task
        if self._is_transactional:
            self._producer.init_transactions(SECONDS_MAX)
        for index in range(-task.before, 0):
            self._send_all(index, index + 1)
        self._send_all(0, task.count)
        # librdkafka may want another epoch after such a failure, and aborts one transaction more.
        for _ in range(ATTEMPTS_MAX):
            self._send_all(task.count, task.count + 2)
            if self.outcome.ends[-1:] != ["aborted"]:
                break

    def _send_all(self, start: int, end: int) -> None:
        """Send all records, each batch in its own transaction if the producer is transactional."""
        if self._is_transactional:
            self._producer.begin_transaction()
        for index in range(start, end):
            self._send(index)
        assert self._producer.flush(SECONDS_MAX) == 0
        if self._is_transactional:
            self._end()

    def _send(self, index: int) -> None:
        flaw = self._task.flaw if index in self._task.bad else None
        self._producer.produce(
            self._task.topic,
            b"value-%d " % index,
            None if flaw == "key" else b"key-%d" % index,
            partition=0,
            on_delivery=lambda error, _: self._delivered(index, error),
            timestamp=time.time_ns() // 1_000_000 + (TWO_HOURS_MS if flaw == "future" else 0),
        )

    def _delivered(self, index: int, error: KafkaError | None) -> None:
        said = STORED
        if error is not None:
            said = error.name()
            if error.code() == KafkaError._INVALID_DIFFERENT_RECORD:
                said = NEIGHBOUR
            elif error.code() in (KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP):
                said = NAMED
                self.outcome.messages[index] = error.str()
        self.outcome.records[index] = said

    def _end(self) -> None:
        try:
            self._producer.commit_transaction(SECONDS_MAX)
            self.outcome.ends.append("committed")
        except KafkaException:
            self._producer.abort_transaction(SECONDS_MAX)
            self.outcome.ends.append("aborted")


def librdkafka_writer(task: Task) -> Outcome:
    writer = _Librdkafka(task)
    writer.run()
    return writer.outcome


@pytest.fixture(params=["java", "librdkafka"])
def writer(request: pytest.FixtureRequest) -> Writer:
    if request.param == "java":
        found: Writer = request.getfixturevalue("java_writer")
        return found
    return librdkafka_writer


# The brokers


@pytest.fixture(scope="module", params=[1, 3], ids=["one", "three"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    """Return the bootstrap address and the number of brokers."""
    folder: Path = tmp_path_factory.mktemp("record-errors")
    if request.param == 1:
        with BrokerProcess(folder) as broker:
            yield broker.bootstrap, 1
        return
    with ProcessCluster(folder, 3) as cluster:
        cluster.create_topic("all-brokers-are-known", 1)
        yield cluster.bootstrap, 3


@pytest.fixture
def new_topic(
    servers: tuple[str, int], fresh_name: Callable[[], str]
) -> Callable[[str], tuple[str, str]]:
    """Create a topic that rejects the flaw, with a replica on each broker."""

    def create(flaw: str) -> tuple[str, str]:
        bootstrap, count = servers
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        name = fresh_name()
        with RawClient(host, int(port)) as client:
            client.create_topic(name, configs=TOPICS[flaw], replication_factor=count)
        return bootstrap, name

    return create


def _expected(task: Task) -> dict[int, str]:
    bad_batches = {index // task.per_batch for index in task.bad}
    expected = {
        index: NEIGHBOUR if index // task.per_batch in bad_batches else STORED
        for index in range(task.count)
    }
    expected |= dict.fromkeys(task.bad, NAMED)
    return expected | dict.fromkeys((task.count, task.count + 1), STORED)


def _stored(task: Task) -> list[int]:
    """The indexes of the records in the topic, those sent before the others included."""
    return [
        int((message.value or b"").split()[0].removeprefix(b"value-"))
        for message in read_messages(task.bootstrap, [task.topic])
    ]


@pytest.mark.parametrize(
    ("mode", "flaw", "before"),
    [
        ("plain", "key", 0),
        ("idempotent", "key", 0),
        ("idempotent", "key", 1),
        ("idempotent", "future", 1),
    ],
)
def test_bad_records_are_distinguished_from_good_ones(
    writer: Writer, new_topic: Callable[[str], tuple[str, str]], mode: str, flaw: str, before: int
) -> None:
    task = Task(*new_topic(flaw), mode, flaw, before)
    outcome = writer(task)
    outcome.records.pop(-1, None)
    expected = _expected(task)
    assert outcome.records == expected
    assert outcome.messages.keys() == task.bad
    good = [index for index, said in expected.items() if said == STORED]
    # A plain producer that has several batches in flight does not promise their order.
    found = _stored(task)
    assert (found if mode == "idempotent" else sorted(found)) == [*range(-before, 0), *good]


def test_a_transaction_with_bad_records_is_aborted_and_the_next_one_commits(
    writer: Writer, new_topic: Callable[[str], tuple[str, str]]
) -> None:
    task = Task(*new_topic("key"), "transactional", "key")
    outcome = writer(task)
    assert (outcome.ends[0], outcome.ends[-1]) == ("aborted", "committed")
    # The outcome of later batches depends on when the producer got the first error.
    assert [outcome.records[index] for index in range(3)] == [NAMED, NEIGHBOUR, NAMED]
    assert [outcome.records[COUNT + index] for index in range(2)] == [STORED] * 2
    # A commit is acknowledged before its markers are written.
    wait_until(lambda: _stored(task), "the committed records")
    assert _stored(task) == [COUNT, COUNT + 1]


def test_more_bad_records_than_have_a_message_of_their_own(
    writer: Writer, new_topic: Callable[[str], tuple[str, str]]
) -> None:
    count = 3 * MESSAGES_MAX
    bad = frozenset(range(0, count, 2))
    task = Task(*new_topic("key"), "idempotent", "key", per_batch=count, count=count, bad=bad)
    outcome = writer(task)
    assert outcome.records == _expected(task)
    assert all(outcome.messages[index] for index in bad)
    assert _stored(task) == [count, count + 1]
