"""Which source of a query a group is told of."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.protocol.cluster_client import TopicPartition
from millstream.spark.source.options import Subscription
from millstream.spark.source.progress import offsets_of


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
            Subscription(topics=("orders",)),
            {("orders", 0): 5, ("orders", 1): 7},
        ),
        ([ORDERS, PAYMENTS], Subscription(topics=("payments",)), {("payments", 0): 3}),
        ([ORDERS, PAYMENTS], Subscription(pattern="pay.*"), {("payments", 0): 3}),
        ([ORDERS, PAYMENTS], Subscription(topics=("invoices",)), {}),
        # Another source has read one of the topics, too.
        (
            [ORDERS, BOTH],
            Subscription(topics=("orders", "payments")),
            {("orders", 0): 2, ("orders", 1): 9, ("payments", 0): 1},
        ),
        ([ORDERS, BOTH], Subscription(topics=("orders",)), {("orders", 0): 5, ("orders", 1): 7}),
        # One of its topics is gone.
        ([PAYMENTS], Subscription(topics=("orders", "payments")), {("payments", 0): 3}),
        # Twice the same: the query is as far as the one behind.
        (
            [ORDERS, source(orders=[6, 1])],
            Subscription(topics=("orders",)),
            {("orders", 0): 5, ("orders", 1): 1},
        ),
        (
            [ORDERS, PAYMENTS],
            Subscription(partitions=tuple(TopicPartition("orders", n) for n in range(2))),
            {("orders", 0): 5, ("orders", 1): 7},
        ),
        ([ORDERS], Subscription(partitions=(TopicPartition("orders", 0),)), {}),
        (OTHERS, Subscription(topics=("orders",)), {}),
    ],
)
def test_only_the_source_of_the_options_counts(
    sources: list[Any], subscription: Subscription, ends: dict[tuple[str, int], int]
) -> None:
    assert offsets_of([*OTHERS, *sources], subscription) == ends
