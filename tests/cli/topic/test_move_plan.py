from __future__ import annotations

from collections import Counter

import pytest

from millstream.cli.topic.move_plan import parse_brokers, plan_exact, plan_spread


def test_brokers() -> None:
    assert parse_brokers("3, 1,2") == (3, 1, 2)
    for text in ("", "1,", "a", "1,1", "-1"):
        with pytest.raises(ValueError, match=text or "brokers"):
            parse_brokers(text)


def test_replicas_that_may_stay_do_not_move() -> None:
    current = {("t", 0): (1, 2), ("t", 1): (2, 3), ("t", 2): (3, 4)}
    moves = plan_spread(current, [1, 2, 3], None)
    assert [(each.partition, each.new) for each in moves] == [(0, (1, 2)), (1, (2, 3)), (2, (3, 1))]
    assert [each.is_changed for each in moves] == [False, False, True]


def test_replicas_and_leaders_are_spread() -> None:
    current = {("t", number): (9, 8) for number in range(6)}
    moves = plan_spread(current, [1, 2, 3], None)
    assert all(len(set(each.new)) == 2 for each in moves)
    assert Counter(broker for each in moves for broker in each.new) == {1: 4, 2: 4, 3: 4}
    assert Counter(each.new[0] for each in moves) == {1: 2, 2: 2, 3: 2}


def test_the_replication_factor_changes() -> None:
    (more,) = plan_spread({("t", 0): (1,)}, [1, 2, 3], 3)
    assert more.new == (1, 2, 3)
    (fewer,) = plan_spread({("t", 0): (3, 1, 2)}, [1, 2, 3], 1)
    assert fewer.new == (3,)
    with pytest.raises(ValueError, match="only 2 brokers are given"):
        plan_spread({("t", 0): (1, 2, 3)}, [1, 2], None)


def test_exact_replicas_keep_their_order() -> None:
    (move,) = plan_exact({("t", 4): (1, 2)}, (3, 1))
    assert move == ("t", 4, (1, 2), (3, 1))
