from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.replica_home import run_home, turns, turns_until
from millstream.coordination.effects import Effects, ProducerIdAndEpoch
from millstream.coordination.journal import JournalOptions
from millstream.coordination.shard import ShardState
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.replication.partition import Partition
from millstream.transactions import marker_sender as marker_module
from millstream.transactions import transaction_shard as shard_module
from millstream.transactions.state import EndRequest, Marker, TransactionState
from millstream.transactions.transaction_coordinator import InitProducerOptions
from millstream.transactions.transaction_shards import TransactionOptions
from transactions.coordinator_home import TransactionHome

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
TIMEOUT_MS = 5000
EXPIRATION_MS = 100_000
OPTIONS = TransactionOptions(
    id_expiration_ms=EXPIRATION_MS, journal=JournalOptions(commit_timeout_ms=60_000)
)


def run(
    path: Path,
    body: Callable[[TransactionHome], Awaitable[None]],
    options: TransactionOptions = OPTIONS,
) -> None:
    run_home(TransactionHome(path, options), body)


async def loaded(home: TransactionHome) -> None:
    shards = home.shards._shards
    await turns_until(
        lambda: all(each.state is ShardState.ACTIVE for each in shards.values()), "not loaded"
    )
    await turns()


async def until(condition: Callable[[], object], seconds_max: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds_max
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came"
        await asyncio.sleep(0.005)


async def begin(
    home: TransactionHome, name: str = "x", *partitions: TopicPartition
) -> ProducerIdAndEpoch:
    """Start a transaction; return its producer."""
    tag = f"{name} {len(home.responses)}"
    home.coordinator.init_producer(
        name, InitProducerOptions(TIMEOUT_MS), None, 7, home.reply(f"{tag} init")
    )
    await turns()
    producer = home.responses[f"{tag} init"]
    assert isinstance(producer, ProducerIdAndEpoch)
    if partitions:
        reply = home.reply(f"{tag} add")
        home.coordinator.add_partitions(name, producer, partitions, 2, reply)
        await turns()
        assert home.responses[f"{tag} add"] is None
    return producer


def state(home: TransactionHome, name: str = "x") -> TransactionState:
    return home.coordinator.describe(name).state


def test_replies_and_markers_wait_for_committed_records(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x", A, B)
        home.markers.answers_at_once = False
        home.coordinator.end("x", EndRequest(producer, True, 2), None, home.reply("end"))
        assert "end" not in home.responses
        assert home.markers.sent == []
        await turns()
        assert home.responses["end"] == ProducerIdAndEpoch(7, 1)
        sent = [(marker, partition) for marker, _, partition, _ in home.markers.sent]
        assert sent == [(Marker(ProducerIdAndEpoch(7, 1), True, 2), each) for each in (A, B)]
        home.markers.sent[0][3].deliver(None)
        await turns()
        assert state(home) is TransactionState.PREPARE_COMMIT
        home.markers.sent[1][3].deliver(None)
        await turns()
        assert state(home) is TransactionState.COMPLETE_COMMIT

    run(tmp_path, body)


@pytest.mark.parametrize("decided", [False, True])
def test_a_restarted_coordinator_continues(tmp_path: Path, decided: bool) -> None:
    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x", A, B)
        home.markers.answers_at_once = False
        home.coordinator.end("x", EndRequest(producer, False, 2), None, home.reply("end"))
        if decided:
            await turns()
            home.markers.sent[0][3].deliver(None)
        await home.reopen()
        await loaded(home)
        if not decided:
            # The decision never reached the log, and the client got an error.
            assert home.responses["end"] == ErrorCode.NOT_COORDINATOR
            assert state(home) is TransactionState.ONGOING
            home.coordinator.end("x", EndRequest(producer, False, 2), None, home.reply("again"))
            await turns()
        # All partitions get a marker again, because the log does not say which ones had it.
        assert [partition for _, _, partition, _ in home.markers.sent] == [A, B]
        assert state(home) is TransactionState.COMPLETE_ABORT

    run(tmp_path, body)


def test_a_timeout_aborts_also_after_a_restart(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        await begin(home, "x", A)
        await begin(home, "y", A)
        home.pass_time(TIMEOUT_MS - 1)
        await turns()
        assert state(home) is TransactionState.ONGOING
        home.pass_time(2)
        await turns()
        assert state(home) is TransactionState.COMPLETE_ABORT
        await begin(home, "x", A)
        await home.reopen()
        await loaded(home)
        assert state(home) is TransactionState.ONGOING
        home.pass_time(TIMEOUT_MS + 1)
        await turns()
        assert state(home) is TransactionState.COMPLETE_ABORT
        assert [marker.is_commit for marker, *_ in home.markers.sent] == [False]

    run(tmp_path, body)


def test_a_new_transaction_version_applies_to_open_transactions(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        await begin(home, "x", A)
        home.shards.set_version(1)
        await begin(home, "y", B)
        home.pass_time(TIMEOUT_MS + 1)
        await turns()
        versions = {partition: marker.version for marker, _, partition, _ in home.markers.sent}
        assert versions == {A: 1, B: 1}
        home.shards.set_version(2)
        await begin(home, "x", A)
        home.pass_time(TIMEOUT_MS + 1)
        await turns()
        assert home.markers.sent[-1][0].version == 2

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("code", "is_done"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, False),
    ],
)
def test_some_error_codes_end_the_retries(tmp_path: Path, code: ErrorCode, is_done: bool) -> None:
    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x", A)
        home.markers.answers_at_once = False
        home.coordinator.end("x", EndRequest(producer, True, 0), None, home.reply("end"))
        await turns()
        home.markers.sent[0][3].fail(code)
        await turns()
        assert (state(home) is TransactionState.COMPLETE_COMMIT) is is_done
        assert len(home.markers.sent) == 1

    run(tmp_path, body)


def test_markers_are_retried_until_they_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_module, "_RETRY_S", 0.001)

    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x", A, B)
        home.markers.answers_at_once = False
        home.coordinator.end("x", EndRequest(producer, True, 0), None, home.reply("end"))
        await turns()
        home.markers.sent[0][3].deliver(None)
        for number in range(1, 5):
            await until(lambda number=number: len(home.markers.sent) > number)
            assert home.markers.sent[number][2] == B
            home.markers.sent[number][3].fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        home.markers.answers_at_once = True
        await until(lambda: state(home) is TransactionState.COMPLETE_COMMIT)
        assert len(home.markers.sent) == 6

    run(tmp_path, body)


def test_markers_wait_for_replicas_that_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "_RETRY_S", 0.001)
    options = TransactionOptions(journal=JournalOptions(commit_timeout_ms=20))

    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x", A)
        partition = home.partition_of("x")
        home.apply_image(home.picture(isr=(1, 2)))
        home.coordinator.end("x", EndRequest(producer, True, 2), None, home.reply("end"))
        await until(lambda: "end" in home.responses)
        assert home.responses["end"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert home.markers.sent == []
        home.apply_image(home.picture())
        partition.advance_high_watermark()
        await until(lambda: state(home) is TransactionState.COMPLETE_COMMIT)
        assert [marker.is_commit for marker, *_ in home.markers.sent] == [True]

    run(tmp_path, body, options)


def test_a_failed_append_reverts_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x", A)

        def fail(*_: Any, **__: Any) -> None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(Partition, "append", fail)
            home.coordinator.end("x", EndRequest(producer, True, 2), None, home.reply("end"))
            await turns(1)
        await loaded(home)
        assert home.responses["end"] == ErrorCode.NOT_COORDINATOR
        assert home.markers.sent == []
        assert state(home) is TransactionState.ONGOING
        assert home.coordinator.describe("x").producer == producer

    run(tmp_path, body)


def test_a_deposed_coordinator_stops(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x", A)
        home.markers.answers_at_once = False
        home.coordinator.end("x", EndRequest(producer, True, 2), None, home.reply("end"))
        await turns()
        home.apply_image(home.picture(leader=2, epoch=1))
        home.markers.sent[0][3].deliver(None)
        await turns()
        with pytest.raises(BrokerError) as caught:
            home.coordinator.describe("x")
        assert caught.value.code == ErrorCode.NOT_COORDINATOR
        # As leader again, the broker loads its decision and sends it in its new epoch.
        home.apply_image(home.picture(leader=1, epoch=2))
        await loaded(home)
        assert [epoch for _, epoch, _, _ in home.markers.sent] == [0, 2]

    run(tmp_path, body)


def test_unused_ids_expire_and_are_deleted_from_the_log(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        await begin(home, "idle")
        await begin(home, "open", A)
        home.clock.now_ms += EXPIRATION_MS
        await begin(home, "fresh")
        assert await home.shards.expire_ids() == 1
        await turns()
        await home.reopen()
        await loaded(home)
        assert {each.transactional_id for each in home.shards.all_transactions()} == {
            "fresh",
            "open",
        }
        with pytest.raises(BrokerError) as caught:
            home.coordinator.describe("idle")
        assert caught.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    run(tmp_path, body)


def test_a_flush_delivers_the_reply_at_once(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        producer = await begin(home, "x")
        home.coordinator.add_partitions("x", producer, [A], 2, home.reply("add"))
        assert "add" not in home.responses
        home.coordinator.flush("x")
        assert home.responses["add"] is None
        home.coordinator.verify_partitions("x", producer, [A, B], home.reply("verify"))
        assert home.responses["verify"] == {
            A: ErrorCode.NONE,
            B: ErrorCode.TRANSACTION_ABORTABLE,
        }

    run(tmp_path, body)


def test_a_damaged_record_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(home: TransactionHome) -> None:
        await begin(home, "x", A)
        shard = home.shards.of("x")
        for key, value in ((b"", b""), (b"\0\0", b"x"), (b"\0\7other", b"x")):
            shard.carry_out("x", Effects(records=[(key, value)]))
        await turns()
        await home.reopen()
        await loaded(home)
        assert state(home) is TransactionState.ONGOING
        assert caplog.text.count("skipped the record") == 2

    run(tmp_path, body)
