"""The offsets that a consumer may commit, and those it returns to."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from millstream.client import Partition
from millstream.client.consumer.progress import CommitProgress, ends_of


def messages(*positions: tuple[int, int]) -> list[Message]:
    return [Message(topic="t", partition=number, offset=offset) for number, offset in positions]


def test_the_last_offset_of_each_partition_counts() -> None:
    batch = messages((0, 1), (0, 2), (1, 7), (0, 5))
    assert ends_of(batch) == {Partition("t", 0): 6, Partition("t", 1): 8}
    assert ends_of(batch, "t") == ends_of(batch)
    others = [*batch, Message(topic="u", partition=0, offset=3)]
    assert ends_of(others) == {**ends_of(batch), Partition("u", 0): 4}


@pytest.mark.parametrize("topic", [None, "t"])
def test_progress_is_committed_once_and_rewound_to_the_last_commit(topic: str | None) -> None:
    progress = CommitProgress(topic)
    batch = messages((0, 0), (0, 1))
    progress.hand_out(batch)
    assert progress.uncommitted() == {}
    assert progress.uncommitted(batch[:1]) == {("t", 0): 1}
    progress.add(batch)
    progress.committed(progress.uncommitted())
    assert progress.uncommitted() == {}
    progress.hand_out(messages((0, 2), (1, 4)))
    progress.hand_out(messages((0, 3)))
    progress.add(messages((0, 2), (1, 4), (0, 3)))
    progress.forget([Partition("t", 1)])
    assert progress.uncommitted() == {("t", 0): 4}
    assert progress.rewind() == {("t", 0): 2}
    assert progress.uncommitted() == {}


def test_a_partial_commit_keeps_the_base_of_the_rest() -> None:
    progress = CommitProgress("t")
    batch = messages((0, 2), (0, 3), (1, 4), (1, 5))
    progress.hand_out(batch)
    progress.committed({Partition("t", 0): 3}, batch)
    assert progress.uncommitted(batch) == {("t", 0): 4, ("t", 1): 6}
    assert progress.rewind() == {("t", 0): 3, ("t", 1): 4}
