"""The minimum number of in-sync replicas of a partition's record."""

from __future__ import annotations

import itertools

import pytest

from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.min_isr import is_at_min_isr, is_under_min_isr, min_isr
from millstream.model.config import TopicConfig

TWO = TopicConfig(min_insync_replicas=2)


def record(replicas: int, isr: int, **fields: tuple[int, ...]) -> PartitionRecord:
    return PartitionRecord(
        replicas=tuple(range(replicas)), leader=0, leader_epoch=0, isr=tuple(range(isr)), **fields
    )


@pytest.mark.parametrize(
    ("replicas", "isr", "is_under", "is_at"),
    [
        (1, 1, False, True),
        (2, 1, True, False),
        (2, 2, False, True),
        (3, 1, True, False),
        (3, 2, False, True),
        (3, 3, False, False),
    ],
)
def test_an_isr_against_a_minimum_of_two(
    replicas: int, isr: int, is_under: bool, is_at: bool
) -> None:
    state = record(replicas, isr)
    assert (is_under_min_isr(state, TWO), is_at_min_isr(state, TWO)) == (is_under, is_at)


@pytest.mark.parametrize(
    ("state", "effective"),
    [
        (record(3, 1, adding=(1, 2)), 1),
        (record(3, 3, removing=(1, 2)), 2),
        (record(4, 3, adding=(3,), removing=(0,)), 2),
        (record(2, 2, adding=(1,), removing=(0,)), 1),
    ],
)
def test_a_reassignment_changes_the_minimum_when_it_is_complete(
    state: PartitionRecord, effective: int
) -> None:
    assert min_isr(state, TWO) == effective


def test_is_under_min_isr_agrees_with_min_isr_for_every_size() -> None:
    for replicas, adding, configured in itertools.product(range(1, 6), range(4), range(1, 7)):
        for isr in range(1, replicas + 1):
            new = tuple(range(replicas - min(adding, replicas - 1), replicas))
            state = record(replicas, isr, adding=new)
            config = TopicConfig(min_insync_replicas=configured)
            assert is_under_min_isr(state, config) == (isr < min_isr(state, config))
