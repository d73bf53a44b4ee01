"""Two diverged logs become equal again, by the end offsets of their epochs alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.log.epoch_cache import EpochCache
from millstream.replication.follower.truncation import EpochEnd, truncation_offset


class Log:
    """A log of records (epoch, leader). Equal records at one offset are the same record."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []

    @property
    def epochs(self) -> EpochCache:
        cache = EpochCache([])
        for offset, (epoch, _) in enumerate(self.records):
            cache.assign(epoch, offset)
        return cache

    def response(self, leader_epoch: int, last_epoch: int, offset: int) -> EpochEnd | None:
        """Return where the logs diverge, as a leader with this log would; None if they do not."""
        epochs = self.epochs
        epochs.assign(leader_epoch, len(self.records))
        found = EpochEnd(*epochs.end_offset(last_epoch, len(self.records)))
        if found.epoch == last_epoch and found.end_offset >= offset:
            return None
        return found


def replicate(follower: Log, leader: Log, leader_epoch: int) -> int:
    """Truncate the follower until the logs do not diverge; return the number of rounds."""
    rounds = 0
    while follower.records:
        said = leader.response(leader_epoch, follower.records[-1][0], len(follower.records))
        if said is None:
            break
        offset = truncation_offset(follower.epochs, len(follower.records), said)
        assert offset < len(follower.records), "a round that truncates nothing never ends"
        del follower.records[offset:]
        rounds += 1
    return rounds


#: Each step: the leader, the records it appends, and the records that each follower fetches.
steps = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 3), st.tuples(*[st.none() | st.integers(0, 6)] * 3)
    ),
    max_size=12,
)


@given(steps)
def test_logs_are_equal_where_they_overlap_after_truncation(
    history: list[tuple[int, int, tuple[int | None, ...]]],
) -> None:
    """Any broker may be elected at any step, in sync or not. Any broker may miss any epoch."""
    logs = [Log(), Log(), Log()]
    for epoch, (number, appended, fetched) in enumerate(history, start=1):
        leader = logs[number]
        leader.records += [(epoch, number)] * appended
        for other, count in enumerate(fetched):
            if other == number or count is None:
                continue
            log = logs[other]
            shared = next(
                (
                    i
                    for i, (a, b) in enumerate(zip(log.records, leader.records, strict=False))
                    if a != b
                ),
                min(len(log.records), len(leader.records)),
            )
            replicate(log, leader, epoch)
            assert log.records == leader.records[: len(log.records)]
            # Only records that differ are truncated.
            assert len(log.records) == shared
            log.records += leader.records[len(log.records) : len(log.records) + count]


def test_records_of_both_logs_are_not_truncated() -> None:
    log, leader = Log(), Log()
    leader.records = [(1, 0)] * 3 + [(2, 0)] * 2
    log.records = [(1, 0)] * 3 + [(2, 0)]
    assert replicate(log, leader, 3) == 0
    assert len(log.records) == 4


def test_an_epoch_unknown_to_the_leader_is_truncated() -> None:
    log, leader = Log(), Log()
    leader.records = [(1, 0)] * 3 + [(4, 2)]
    log.records = [(1, 0)] * 3 + [(2, 1)] + [(3, 1)]
    assert replicate(log, leader, 4) == 1
    assert log.records == [(1, 0)] * 3


def test_without_epochs_the_leaders_end_offset_is_used() -> None:
    assert truncation_offset(EpochCache([]), 9, EpochEnd(2, 4)) == 4


def test_a_log_beyond_the_leaders_end_is_truncated_below_its_start() -> None:
    assert truncation_offset(EpochCache([(5, 10)]), 12, EpochEnd(3, 4)) == 4
