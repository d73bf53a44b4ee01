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


def test_the_addresses_of_an_ipv6_network_count_as_one() -> None:
    failures = FailedLogins(2)
    failures.note("2001:db8::1", 0.0)
    failures.note("2001:db8::ffff:1", 0.0)
    assert failures.is_slow("2001:db8:0:0:9::", 1.0)
    assert not failures.is_slow("2001:db8:0:1::1", 1.0)
    for _ in range(2):
        failures.note("::ffff:192.0.2.1", 0.0)
    assert failures.is_slow("192.0.2.1", 1.0)
    assert not failures.is_slow("::ffff:192.0.2.2", 1.0)
    failures.note("fe80::1%eth0", 0.0)
    failures.note("fe80::2%eth0", 0.0)
    assert failures.is_slow("fe80::3%eth0", 1.0)
    for number in range(WAITING_MAX):
        assert failures.begin_wait(f"2001:db8::{number}")
    assert not failures.begin_wait("2001:db8::99")
    for number in range(WAITING_MAX):
        failures.end_wait(f"2001:db8::{number}")
    assert failures.begin_wait("2001:db8::99")


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
