"""The most specific quota applies, in Kafka's order."""

from __future__ import annotations

from millstream.metadata.security_record import QuotaEntity, Quotas
from millstream.model.map import Map
from millstream.security.quota.quota_table import QuotaTable
from millstream.security.quota.quota_type import QuotaName

RATE = QuotaName.PRODUCER_BYTE_RATE

#: From the most specific one to the least, with the scope of the client alice, app.
ORDER: list[tuple[QuotaEntity, tuple[str | None, str | None]]] = [
    ((("client-id", "app"), ("user", "alice")), ("alice", "app")),
    ((("client-id", None), ("user", "alice")), ("alice", "app")),
    ((("user", "alice"),), ("alice", None)),
    ((("client-id", "app"), ("user", None)), ("alice", "app")),
    ((("client-id", None), ("user", None)), ("alice", "app")),
    ((("user", None),), ("alice", None)),
    ((("client-id", "app"),), (None, "app")),
    ((("client-id", None),), (None, "app")),
]


def table(quotas: dict[QuotaEntity, dict[str, float]]) -> QuotaTable:
    made: dict[QuotaEntity, Quotas] = {entity: Map(each) for entity, each in quotas.items()}
    return QuotaTable(made)


def test_each_quota_hides_all_less_specific_ones() -> None:
    for position in range(len(ORDER)):
        present = {entity: {RATE: 10.0 + n} for n, (entity, _) in enumerate(ORDER)}
        for entity, _ in ORDER[:position]:
            del present[entity]
        found = table(present).find(RATE, "alice", "app")
        assert found is not None
        assert (found.value, found.scope) == (10.0 + position, ORDER[position][1])


def test_a_client_without_a_quota() -> None:
    quotas = table({(("user", "bob"),): {RATE: 1.0}, (("client-id", "x"),): {RATE: 2.0}})
    assert quotas.find(RATE, "alice", "app") is None
    assert quotas.find(QuotaName.CONSUMER_BYTE_RATE, "bob", "app") is None


def test_each_quota_is_looked_up_on_its_own() -> None:
    quotas = table(
        {
            (("user", "alice"),): {RATE: 1.0},
            (("user", None),): {RATE: 2.0, QuotaName.CONSUMER_BYTE_RATE: 3.0},
        }
    )
    found = quotas.find(QuotaName.CONSUMER_BYTE_RATE, "alice", "app")
    assert found is not None
    assert found.value == 3.0


def test_addresses() -> None:
    name = QuotaName.CONNECTION_CREATION_RATE
    quotas = table({(("ip", "10.0.0.1"),): {name: 5.0}, (("ip", None),): {name: 7.0}})
    assert quotas.connection_rate("10.0.0.1") == 5.0
    assert quotas.connection_rate("10.0.0.2") == 7.0
    assert table({}).connection_rate("10.0.0.1") is None
    assert quotas.has_address_quotas
    assert not quotas.has_client_quotas
