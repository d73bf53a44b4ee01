"""The rules for replicas and in-sync replicas."""

from __future__ import annotations

import pytest

from millstream.model.durability import default_min_isr, default_replicas, effective_min_isr


@pytest.mark.parametrize(
    ("brokers", "replicas", "min_isr"),
    [(0, 1, 1), (1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 3, 2), (100, 3, 2)],
)
def test_defaults_follow_the_number_of_brokers(brokers: int, replicas: int, min_isr: int) -> None:
    assert default_replicas(brokers) == replicas
    assert default_min_isr(default_replicas(brokers)) == min_isr


@pytest.mark.parametrize(
    ("configured", "replicas", "effective"),
    [
        (1, 1, 1),
        (2, 1, 1),
        (2, 2, 2),
        (2, 3, 2),
        (5, 3, 3),
        (None, 1, 1),
        (None, 2, 1),
        (None, 3, 2),
        (None, 7, 2),
    ],
)
def test_the_minimum_is_limited_by_the_replicas(
    configured: int | None, replicas: int, effective: int
) -> None:
    assert effective_min_isr(configured, replicas) == effective


@pytest.mark.parametrize("replicas", range(1, 10))
def test_a_full_isr_is_never_below_the_minimum(replicas: int) -> None:
    assert all(
        effective_min_isr(configured, replicas) <= replicas
        for configured in (None, *range(1, 2 * replicas))
    )
