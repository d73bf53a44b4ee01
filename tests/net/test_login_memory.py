"""The memory for incomplete requests of clients that are not authenticated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.net.login_memory import LoginMemory


class Owner:
    def __init__(self) -> None:
        self.is_evicted = False

    def evict(self) -> None:
        assert not self.is_evicted
        self.is_evicted = True


@pytest.fixture
def owners() -> Iterator[Owner]:
    return iter(Owner, None)


def test_the_oldest_of_the_largest_requests_ends(owners: Iterator[Owner]) -> None:
    memory = LoginMemory()
    small, first, second, third = (next(owners) for _ in range(4))
    for owner, size in ((small, 5), (first, 45), (second, 40)):
        assert memory.reserve(owner, size, 100) is not None
    assert memory.reserve(third, 33, 100) is not None
    assert [each.is_evicted for each in (small, first, second, third)] == [
        False, True, False, False,
    ]  # fmt: skip
    assert memory.reserved_bytes == 5 + 40 + 33


def test_a_request_does_not_end_smaller_ones(owners: Iterator[Owner]) -> None:
    memory = LoginMemory()
    present = [next(owners) for _ in range(10)]
    for owner in present:
        assert memory.reserve(owner, 10, 100) is not None
    assert memory.reserve(next(owners), 90, 100) is None
    assert not any(each.is_evicted for each in present)
    assert memory.reserve(next(owners), 9, 100) is not None
    assert [each.is_evicted for each in present] == [True] + [False] * 9


def test_a_request_above_the_limit_is_taken_alone(owners: Iterator[Owner]) -> None:
    memory = LoginMemory()
    large = next(owners)
    assert memory.reserve(large, 500, 100) is not None
    assert memory.reserve(next(owners), 10, 100) is not None
    assert large.is_evicted
    assert memory.reserved_bytes == 10


@given(st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=60))
def test_the_limit_holds(steps: list[tuple[int, bool]]) -> None:
    memory = LoginMemory()
    open_sizes: dict[Owner, int] = {}
    for size, ends in steps:
        owner = Owner()
        before = dict(open_sizes)
        if memory.reserve(owner, size, 100) is not None:
            open_sizes[owner] = size
        open_sizes = {each: bytes_ for each, bytes_ in open_sizes.items() if not each.is_evicted}
        # Nothing that is much smaller has ended.
        ended = [bytes_ for each, bytes_ in before.items() if each.is_evicted]
        assert all(each * 2 > size for each in ended)
        assert memory.reserved_bytes == sum(open_sizes.values())
        assert memory.reserved_bytes <= 100 or len(open_sizes) == 1
        if ends and open_sizes:
            first = next(iter(open_sizes))
            memory.release(first)
            del open_sizes[first]
