"""The states of a classic group, and the transitions between them.

state                 waits for                      ends when
EMPTY                 a first member
PREPARING_REBALANCE   every member to (re)join       all have joined, or the join timer expires
COMPLETING_REBALANCE  the leader's assignment        the leader sends SyncGroup
STABLE                nothing
DEAD                  nothing: the group was deleted, and clients must look it up again

EMPTY                 -> PREPARING_REBALANCE    a member joins
PREPARING_REBALANCE   -> COMPLETING_REBALANCE   all joined, or the timer expired: new generation
                      -> EMPTY                  no member is left: new generation
COMPLETING_REBALANCE  -> STABLE                 the leader's SyncGroup
                      -> PREPARING_REBALANCE    a member joins, leaves, fails or changes
STABLE                -> PREPARING_REBALANCE    the same, or the leader joins again
any                   -> DEAD                   the group is deleted
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ClassicState(StrEnum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE
_COMPLETING, _STABLE = ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE
_DEAD = ClassicState.DEAD

#: The states that each state may change to.
TRANSITIONS: Final[dict[ClassicState, frozenset[ClassicState]]] = {
    _EMPTY: frozenset({_PREPARING, _DEAD}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY, _DEAD}),
    _COMPLETING: frozenset({_STABLE, _PREPARING, _DEAD}),
    _STABLE: frozenset({_PREPARING, _DEAD}),
    _DEAD: frozenset(),
}
