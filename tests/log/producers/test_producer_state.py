from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.in_process.log_home import make_batch
from millstream.log.producers.producer_state import ProducerState
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import TRANSACTIONAL_FLAG, BatchHeader, read_header
from millstream.records.control import EndMarker, build_marker


def _header(epoch: int, sequence: int, count: int = 1, producer_id: int = 9) -> BatchHeader:
    return read_header(make_batch(count, producer=(producer_id, epoch, sequence)))


class Producer:
    """Appends batches to a producer state, as a log does."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end = 0

    def send(self, epoch: int, sequence: int, count: int = 1) -> int:
        header = _header(epoch, sequence, count)
        earlier = self.state.check(header, self.end)
        if earlier is not None:
            return earlier.first_offset
        self.state.append(header, self.end, header.max_timestamp)
        self.end += count
        return self.end - count

    def refused(self, epoch: int, sequence: int, count: int = 1) -> ErrorCode:
        with pytest.raises(BrokerError) as caught:
            self.send(epoch, sequence, count)
        return caught.value.code


def test_the_last_five_batches_are_recognised() -> None:
    producer = Producer()
    for number in range(7):
        assert producer.send(0, number * 3, 3) == number * 3
    for number in range(2, 7):
        assert producer.send(0, number * 3, 3) == number * 3
    assert producer.refused(0, 3, 3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.refused(0, 18, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.end == 21


def test_gaps_are_rejected() -> None:
    producer = Producer()
    producer.send(0, 0)
    assert producer.refused(0, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.send(0, 1)


def test_an_unknown_producer_may_start_anywhere() -> None:
    producer = Producer()
    assert producer.send(3, 500) == 0
    assert producer.send(3, 501) == 1


def test_epochs_fence() -> None:
    producer = Producer()
    producer.send(2, 0)
    assert producer.refused(1, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.refused(3, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.send(3, 0)
    assert producer.refused(2, 1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap() -> None:
    producer = Producer()
    last = (1 << 31) - 1
    producer.send(0, last - 1, 1)
    producer.send(0, last, 3)
    assert producer.state.entries[9].last_sequence == 1
    assert producer.send(0, last, 3) == 1
    assert producer.send(0, 2) == 4


def test_idle_producers_expire() -> None:
    producer = Producer()
    producer.send(0, 0)
    sent_ms = producer.state.entries[9].last_timestamp
    assert producer.state.expire(sent_ms + 99, 100) == 0
    assert producer.state.expire(sent_ms + 100, 100) == 1
    assert producer.send(0, 7) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 5)), min_size=0, max_size=30
    )
)
def test_a_snapshot_keeps_the_last_batch_of_each_producer(
    appends: list[tuple[int, int, int]],
) -> None:
    state = ProducerState()
    offset = 0
    for producer_id, epoch, count in appends:
        header = _header(epoch, offset, count, producer_id)
        state.append(header, offset, header.max_timestamp)
        offset += count
    decoded = ProducerState.decode(state.encode())
    assert decoded.encode() == state.encode()
    assert decoded.entries.keys() == state.entries.keys()
    for producer_id, entry in state.entries.items():
        assert decoded.entries[producer_id].epoch == entry.epoch
        assert decoded.entries[producer_id].batches == entry.batches[-1:]


@given(st.data())
def test_damaged_snapshots_are_rejected(data: st.DataObject) -> None:
    producer = Producer()
    for number in range(3):
        producer.send(0, number)
    snapshot = bytearray(producer.state.encode())
    if data.draw(st.booleans()):
        snapshot[data.draw(st.integers(0, len(snapshot) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del snapshot[data.draw(st.integers(0, len(snapshot) - 1)) :]
    with pytest.raises(ValueError, match="snapshot"):
        ProducerState.decode(bytes(snapshot))


def _transactional(producer_id: int, offset: int) -> BatchHeader:
    header = _header(0, offset, producer_id=producer_id)
    return header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG)


def _marker(producer_id: int, marker: EndMarker) -> BatchHeader:
    return read_header(build_marker(marker, producer_id, 0, 5))


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([None, True, False])), min_size=0, max_size=30
    )
)
def test_a_snapshot_keeps_open_transactions(steps: list[tuple[int, bool | None]]) -> None:
    state = ProducerState()
    for offset, (producer_id, is_commit) in enumerate(steps):
        if is_commit is None:
            state.append(_transactional(producer_id, offset), offset, 5)
        else:
            marker = EndMarker(is_commit, offset)
            state.end_transaction(_marker(producer_id, marker), offset, 5, marker)
    end = len(steps)
    decoded = ProducerState.decode(state.encode())
    assert decoded.encode() == state.encode()
    assert decoded.transactions.first_unstable_offset(
        end
    ) == state.transactions.first_unstable_offset(end)
    for producer_id, entry in state.entries.items():
        assert decoded.entries[producer_id].coordinator_epoch == entry.coordinator_epoch
        assert decoded.has_open_transaction(producer_id, 0) == (entry.transaction_start >= 0)
        marker = EndMarker(is_commit=False, coordinator_epoch=end)
        header = _marker(producer_id, marker)
        assert decoded.end_transaction(header, end, 5, marker) == state.end_transaction(
            header, end, 5, marker
        )
        end += 1


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    state = ProducerState()
    state.append(_transactional(3, 0), 0, 5)
    assert state.expire(1 << 60, 100) == 0
    marker = EndMarker(is_commit=True, coordinator_epoch=0)
    state.end_transaction(_marker(3, marker), 1, 5, marker)
    assert state.expire(1 << 60, 100) == 1
