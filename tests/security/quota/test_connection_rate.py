"""New connections above a rate wait for their turn, or are closed."""

from __future__ import annotations

from millstream.metadata.security_record import QuotaEntity, Quotas
from millstream.model.map import Map
from millstream.net.gate import Entry
from millstream.security.quota.connection_rate import (
    ADDRESS_RATE,
    BROKER_RATE,
    ConnectionRateOptions,
    ConnectionRates,
)
from millstream.security.quota.quota_table import QuotaTable
from millstream.security.quota.rate import WindowOptions

WINDOW = WindowOptions(samples=2, window_s=1.0)
LOCAL = "127.0.0.1"


def test_without_limits_nothing_is_counted() -> None:
    options = ConnectionRateOptions()
    assert not options.is_limited
    assert ConnectionRates(options).enter("A", LOCAL, 0.0) is None


def test_connections_above_the_rate_of_the_broker_wait_one_after_the_other() -> None:
    rates = ConnectionRates(ConnectionRateOptions(broker=10, window=WINDOW))
    assert all(rates.enter("A", LOCAL, 0.0) is None for _ in range(20))
    waits = [rates.enter("A", LOCAL, 0.0) for _ in range(3)]
    assert waits == [Entry(None, 0.1), Entry(None, 0.2), Entry(None, 0.3)]


def test_a_connection_that_would_wait_too_long_is_closed_and_not_counted() -> None:
    rates = ConnectionRates(ConnectionRateOptions(broker=1, window=WINDOW))
    entries = [rates.enter("A", LOCAL, 0.0) for _ in range(40)]
    assert entries[2 + 30 - 1] == Entry(None, 30.0)
    assert set(entries[2 + 30 :]) == {Entry(BROKER_RATE, 0.0)}
    assert rates.enter("A", LOCAL, 5.0) == Entry(None, 26.0)


def test_a_listener_has_its_own_rate() -> None:
    rates = ConnectionRates(ConnectionRateOptions(listeners={"A": 1}, window=WINDOW))
    assert [rates.enter("A", LOCAL, 0.0) for _ in range(3)] == [None, None, Entry(None, 1.0)]
    assert rates.enter("B", LOCAL, 0.0) is None


def test_the_rate_of_the_broker_leaves_the_listener_between_brokers_alone() -> None:
    rates = ConnectionRates(ConnectionRateOptions(broker=1, protected="I", window=WINDOW))
    assert [rates.enter("A", LOCAL, 0.0) for _ in range(3)] == [None, None, Entry(None, 1.0)]
    assert rates.enter("I", LOCAL, 0.0) is None


def test_an_address_above_its_rate_is_rejected_after_a_pause() -> None:
    rates = ConnectionRates(ConnectionRateOptions(window=WINDOW))
    quotas: dict[QuotaEntity, Quotas] = {(("ip", LOCAL),): Map({"connection_creation_rate": 1.0})}
    rates.table = QuotaTable(quotas)
    assert rates.enter("A", LOCAL, 0.0) is None
    assert rates.enter("A", LOCAL, 0.0) == Entry(ADDRESS_RATE, 1.0)
    assert rates.enter("A", "127.0.0.2", 0.0) is None
    # The rejected connection did not count.
    assert rates.enter("A", LOCAL, 2.5) is None
