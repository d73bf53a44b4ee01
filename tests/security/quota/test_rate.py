"""Rates over windows and token buckets, against Kafka's figures."""

from __future__ import annotations

import pytest

from millstream.security.quota.rate import RateWindow, TokenBucket, WindowOptions

WINDOW = WindowOptions(samples=11, window_s=1.0)


def test_a_rate_counts_at_least_ten_whole_samples() -> None:
    rate = RateWindow(WINDOW)
    rate.record(1000, 50.0)
    assert rate.rate(50.0) == 100
    assert rate.rate(50.5) == pytest.approx(1000 / 10.5)


def test_a_burst_within_the_quota_of_ten_seconds_is_not_above_it() -> None:
    rate = RateWindow(WINDOW)
    rate.record(1000, 0.0)
    assert rate.excess_s(100, 0.0) == 0
    rate.record(500, 0.0)
    assert rate.excess_s(100, 0.0) == 5


def test_after_the_excess_the_rate_is_at_the_limit() -> None:
    rate = RateWindow(WINDOW)
    rate.record(1500, 0.0)
    # While the sample exists, the elapsed time grows once more than ten samples have passed.
    assert rate.excess_s(100, 10.99) == pytest.approx(15 - 10.99)
    # The sample is dropped eleven seconds after its last event.
    assert rate.excess_s(100, 11.0) == 0
    assert rate.rate(11.0) == 0


def test_a_steady_rate_is_measured_as_such() -> None:
    rate = RateWindow(WINDOW)
    for tenth in range(300):
        rate.record(10, tenth / 10)
    assert rate.rate(29.9) == pytest.approx(100, rel=0.1)


def test_taking_back_an_event() -> None:
    rate = RateWindow(WINDOW)
    rate.record(5000, 1.0)
    rate.record(-5000, 1.0)
    assert rate.rate(1.0) == 0


def test_one_sample_is_a_window_too() -> None:
    rate = RateWindow(WindowOptions(samples=1, window_s=2.0))
    rate.record(100, 0.0)
    assert rate.rate(0.0) == 50
    assert rate.rate(2.0) == 0


def test_a_bucket_allows_a_burst_of_its_window() -> None:
    bucket = TokenBucket(WindowOptions(samples=100, window_s=1.0))
    # The example of Kafka's documentation: a quota of 5 and a burst of 560 need 12 seconds.
    assert bucket.exhausted_s(5, 0.0) == 0
    assert bucket.take(560, 5, 0.0) == 12
    assert bucket.exhausted_s(5, 6.0) == 6
    assert bucket.exhausted_s(5, 12.0) == 0


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(WindowOptions(samples=2, window_s=1.0))
    assert bucket.take(0, 10, 0.0) == 0
    assert bucket.take(20, 10, 1000.0) == 0
    assert bucket.take(10, 10, 1000.0) == 1
