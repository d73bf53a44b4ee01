from __future__ import annotations

from typing import Any

import pytest

from millstream.client import UsageError
from millstream.client.worker.policy.rate_limit import RateLimit


def started(limit: RateLimit, begin: float, end: float, step: float) -> int:
    """The attempts that start while one is tried every `step` seconds as often as possible."""
    count = 0
    for number in range(round((end - begin) / step)):
        while limit.has_token(begin + number * step):
            limit.take()
            count += 1
    return count


@pytest.mark.parametrize(
    ("text", "per_second"), [("100/s", 100.0), ("600/m", 10.0), ("1.5 / s", 1.5), ("36/h", 0.01)]
)
def test_the_rate_is_not_exceeded(text: str, per_second: float) -> None:
    limit = RateLimit(text)
    assert limit.per_second == pytest.approx(per_second)
    seconds = 1000 / per_second
    count = started(limit, 50.0, 50.0 + seconds, seconds / 50_000)
    # The first tokens are in the bucket at the start.
    assert count == pytest.approx(1001 + per_second / 10, abs=2)


def test_a_pause_allows_no_large_burst() -> None:
    limit = RateLimit("100/s")
    assert started(limit, 0.0, 0.001, 0.001) == 11
    assert started(limit, 3600.0, 3600.001, 0.001) == 11


@pytest.mark.parametrize("text", ["100", "0/s", "-1/s", "1/d", "fast", 100])
def test_wrong_limits(text: Any) -> None:
    with pytest.raises(UsageError, match="'100/s', '600/m' or '1000/h'"):
        RateLimit(text)
