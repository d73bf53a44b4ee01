from __future__ import annotations

import pytest

from millstream.broker.metrics.label_budget import NAME_CHARACTERS_MAX, LabelBudget, is_showable


def test_first_come_first_served() -> None:
    budget = LabelBudget(2)
    assert [budget.reserve(name) for name in "abc"] == [True, True, False]


def test_rows_stay_while_their_groups_exist() -> None:
    budget = LabelBudget(2)
    assert [budget.reserve(name) for name in "ab"] == [True, True]
    budget.end_round()
    assert [budget.reserve(name) for name in "cba"] == [False, True, True], "whatever the order"
    budget.end_round()
    assert [budget.reserve(name) for name in "ca"] == [False, True]
    budget.end_round()
    assert [budget.reserve(name) for name in "cab"] == [True, True, False]


def test_rows_may_be_released_at_once() -> None:
    budget = LabelBudget(4)
    assert budget.reserve("a", 3)
    assert not budget.reserve("b", 2)
    budget.release("a")
    budget.release("nobody")
    assert budget.reserve("b", 4)


def test_rows_are_given_all_or_none() -> None:
    budget = LabelBudget(10)
    assert budget.reserve("a", 6)
    assert not budget.reserve("b", 5)
    assert budget.reserve("c", 4)
    budget.end_round()
    assert not budget.reserve("a", 7), "it has grown and no longer fits"
    assert budget.reserve("a", 5)
    assert budget.reserve("c", 5)


def test_a_budget_of_zero() -> None:
    budget = LabelBudget(0)
    assert not budget.reserve("a")
    assert budget.reserve("a", 0)


@pytest.mark.parametrize(
    "name", ["_other", "a\0b", "a\nb", "\x7f", "x" * (NAME_CHARACTERS_MAX + 1)]
)
def test_names_that_no_label_can_hold(name: str) -> None:
    assert not is_showable(name)
    assert not LabelBudget(1).reserve(name)


@pytest.mark.parametrize("name", ["", "a b", "ü", "\U0001f600", 'a"b\\c', "x" * 256])
def test_names_of_all_other_kinds(name: str) -> None:
    assert LabelBudget(1).reserve(name)
