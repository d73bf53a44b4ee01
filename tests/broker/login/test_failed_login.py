"""Failed logins by address."""

from __future__ import annotations

from millstream.broker.login.failed_login import (
    ADDRESSES_MAX,
    PERIOD_S,
    WAITING_MAX,
    FailedLogins,
)


def test_an_address_is_slow_after_too_many_failures_in_a_minute() -> None:
    failures = FailedLogins(2)
    failures.note("a", 0.0)
    assert not failures.is_slow("a", 1.0)
    failures.note("a", 1.0)
    assert failures.is_slow("a", 2.0)
    assert not failures.is_slow("b", 2.0)
    assert not failures.is_slow("a", PERIOD_S)
    failures.note("a", PERIOD_S)
    assert not failures.is_slow("a", PERIOD_S + 1)


def test_few_logins_of_an_address_wait() -> None:
    failures = FailedLogins(1)
    assert [failures.begin_wait("a") for _ in range(WAITING_MAX + 1)] == [True] * WAITING_MAX + [
        False
    ]
    assert failures.begin_wait("b")
    failures.end_wait("a")
    assert failures.begin_wait("a")
    for _ in range(WAITING_MAX):
        failures.end_wait("a")
    failures.end_wait("b")


def test_the_table_is_bounded() -> None:
    failures = FailedLogins(1)
    for number in range(ADDRESSES_MAX + 10):
        failures.note(str(number), 0.0)
    assert len(failures) == ADDRESSES_MAX
    assert not failures.is_slow("0", 0.0)
    assert failures.is_slow(str(ADDRESSES_MAX + 9), 0.0)
