"""Admission of batches while the previous transaction is still ending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.transaction import admission as admission_module
from millstream.broker.transaction.admission import Admission
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.topic import TopicPartition
from millstream.transactions.state import EndRequest
from millstream.transactions.transaction_coordinator import InitProducerOptions
from transactions.coordinator_home import TransactionHome

A = TopicPartition("a", 0)


def partition_with(*, marker_offset: int = -1, leader_epoch: int = 0) -> Any:
    """Return a partition with ten records, without an open transaction, perhaps with a marker."""
    log = SimpleNamespace(
        log_end_offset=10,
        producer_state=SimpleNamespace(
            has_open_transaction=lambda *_: False,
            has_marker_since=lambda _, offset: marker_offset >= offset,
        ),
    )
    return SimpleNamespace(topic_partition=A, leader_epoch=leader_epoch, log=log)


PARTITION = partition_with()


def run(path: Path, body: Callable[[TransactionHome, ProducerIdAndEpoch], Awaitable[None]]) -> None:
    """Run `body` with a transaction that was decided and whose marker is pending."""

    async def main() -> None:
        home = TransactionHome(path)
        coordinator = home.open()
        home.markers.answers_at_once = False
        coordinator.init_producer("x", InitProducerOptions(1000), None, 7, home.reply("init"))
        coordinator.add_partitions("x", ProducerIdAndEpoch(7, 0), [A], 2, home.reply("add"))
        coordinator.end("x", EndRequest(ProducerIdAndEpoch(7, 0), True, 2), None, home.reply("end"))
        coordinator.flush("x")
        assert home.responses["end"] == ProducerIdAndEpoch(7, 1)
        try:
            await body(home, home.responses["end"])
        finally:
            await home.close()

    asyncio.run(main())


def test_the_next_transaction_waits_for_the_markers(tmp_path: Path) -> None:
    async def body(home: TransactionHome, producer: ProducerIdAndEpoch) -> None:
        admission = Admission(lambda _: home.coordinator, "x", CallbackFailures())
        decided: list[bool] = []
        admission.request(producer, [PARTITION], lambda: decided.append(True), adds=True)
        assert decided == []
        home.markers.sent[0][3].deliver(None)
        assert decided == [True]
        admission.check(PARTITION, producer)

    run(tmp_path, body)


def test_the_wait_for_an_ending_transaction_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "_ENDING_S_MAX", 0.01)

    async def body(home: TransactionHome, producer: ProducerIdAndEpoch) -> None:
        admission = Admission(lambda _: home.coordinator, "x", CallbackFailures())
        decided = asyncio.Event()
        admission.request(producer, [PARTITION], decided.set, adds=True)
        await asyncio.wait_for(decided.wait(), 90)
        with pytest.raises(BrokerError) as caught:
            admission.check(PARTITION, producer)
        assert caught.value.code == ErrorCode.CONCURRENT_TRANSACTIONS
        # The markers that arrive later cause no further request.
        home.markers.sent[0][3].deliver(None)
        assert A not in home.coordinator.describe("x").partitions

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("adds", "then", "code"),
    [
        (True, partition_with(marker_offset=9), None),
        # A marker of the previous transaction: one of this transaction would have a later epoch.
        (True, partition_with(marker_offset=10), None),
        (True, partition_with(leader_epoch=1), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (False, partition_with(marker_offset=9), None),
        (False, partition_with(marker_offset=10), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (False, partition_with(leader_epoch=1), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_an_admitted_transaction_may_end_before_the_append(
    tmp_path: Path, adds: bool, then: Any, code: ErrorCode | None
) -> None:
    async def body(home: TransactionHome, producer: ProducerIdAndEpoch) -> None:
        home.markers.sent[0][3].deliver(None)
        if not adds:
            home.coordinator.add_partitions("x", producer, [A], 2, home.reply("added"))
        admission = Admission(lambda _: home.coordinator, "x", CallbackFailures())
        admission.request(producer, [PARTITION], lambda: None, adds=adds)
        if code is None:
            admission.check(then, producer)
            return
        with pytest.raises(BrokerError) as caught:
            admission.check(then, producer)
        assert caught.value.code == code

    run(tmp_path, body)
