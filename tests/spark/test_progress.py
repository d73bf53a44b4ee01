"""Which source's offsets are committed to the group."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.model.topic import TopicPartition
from millstream.spark.progress import source_offsets
from millstream.spark.source.source_options import TopicSelection


def source(**topics: list[int]) -> Any:
    end = {topic: dict(enumerate(offsets)) for topic, offsets in topics.items()}
    return SimpleNamespace(endOffset=json.dumps(end))


ORDERS = source(orders=[5, 7])
PAYMENTS = source(payments=[3])
BOTH = source(orders=[2, 9], payments=[1])
OTHERS = [SimpleNamespace(endOffset=text) for text in ("17", '"log"', '{"seconds": 3}', "{}", None)]


@pytest.mark.parametrize(
    ("sources", "subscription", "ends"),
    [
        (
            [ORDERS, PAYMENTS],
            TopicSelection(topics=("orders",)),
            {("orders", 0): 5, ("orders", 1): 7},
        ),
        ([ORDERS, PAYMENTS], TopicSelection(topics=("payments",)), {("payments", 0): 3}),
        ([ORDERS, PAYMENTS], TopicSelection(pattern="pay.*"), {("payments", 0): 3}),
        ([ORDERS, PAYMENTS], TopicSelection(topics=("invoices",)), {}),
        # Another source also reads one of the topics.
        (
            [ORDERS, BOTH],
            TopicSelection(topics=("orders", "payments")),
            {("orders", 0): 2, ("orders", 1): 9, ("payments", 0): 1},
        ),
        ([ORDERS, BOTH], TopicSelection(topics=("orders",)), {("orders", 0): 5, ("orders", 1): 7}),
        # One of its topics was deleted.
        ([PAYMENTS], TopicSelection(topics=("orders", "payments")), {("payments", 0): 3}),
        # Two sources read the same topics: the lower offsets count.
        (
            [ORDERS, source(orders=[6, 1])],
            TopicSelection(topics=("orders",)),
            {("orders", 0): 5, ("orders", 1): 1},
        ),
        (
            [ORDERS, PAYMENTS],
            TopicSelection(partitions=tuple(TopicPartition("orders", n) for n in range(2))),
            {("orders", 0): 5, ("orders", 1): 7},
        ),
        ([ORDERS], TopicSelection(partitions=(TopicPartition("orders", 0),)), {}),
        (OTHERS, TopicSelection(topics=("orders",)), {}),
    ],
)
def test_only_the_source_of_the_options_counts(
    sources: list[Any], subscription: TopicSelection, ends: dict[tuple[str, int], int]
) -> None:
    assert source_offsets([*OTHERS, *sources], subscription) == ends
