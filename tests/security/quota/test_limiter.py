"""Clients are measured against their quotas; the number of tracked clients is bounded."""

from __future__ import annotations

from millstream.metadata.security_record import QuotaEntity, Quotas
from millstream.model.map import Map
from millstream.security.quota.limiter import Limiter
from millstream.security.quota.rate import WindowOptions

WINDOW = WindowOptions(samples=11, window_s=1.0)


def limiter(quotas: dict[QuotaEntity, dict[str, float]], clients_max: int = 100) -> Limiter:
    made = Limiter(WINDOW, WINDOW, clients_max)
    made.set_quotas(as_records(quotas))
    return made


def as_records(quotas: dict[QuotaEntity, dict[str, float]]) -> dict[QuotaEntity, Quotas]:
    return {entity: Map(each) for entity, each in quotas.items()}


def test_a_client_without_quotas_has_no_meters() -> None:
    client = limiter({(("user", "bob"),): {"producer_byte_rate": 1.0}}).client("alice", "app")
    assert client.produce is None
    assert client.charge_request(100.0, 0.0) == 0


def test_all_client_ids_of_a_user_share_the_quota_of_the_user() -> None:
    limits = limiter({(("user", "alice"),): {"producer_byte_rate": 100.0}})
    first, second = limits.client("alice", "a"), limits.client("alice", "b")
    assert first.produce is not None
    assert second.produce is not None
    assert first.produce.charge(1000, 0.0) == 0
    assert second.produce.charge(500, 0.0) == 5
    assert [meter.scope for meter in limits.meters()] == [("alice", None)]


def test_the_default_of_users_is_separate_for_each_user() -> None:
    limits = limiter({(("user", None),): {"consumer_byte_rate": 100.0}})
    alice, bob = limits.client("alice", "a").fetch, limits.client("bob", "a").fetch
    assert alice is not None
    assert bob is not None
    assert alice.charge(2000, 0.0) == 10
    assert bob.charge(10, 0.0) == 0


def test_a_throttle_for_request_time_is_at_most_one_sample() -> None:
    client = limiter({(("user", "alice"),): {"request_percentage": 1.0}}).client("alice", "")
    # 5 s of work are 500 percent-seconds: at 1 % they would need 490 s.
    assert client.charge_request(5.0, 0.0) == 1.0
    assert client.request is not None
    assert client.request.check(0.0) == 1.0


def test_strict_clients_get_no_tokens_from_an_exhausted_bucket() -> None:
    mutation = (
        limiter({(("user", "a"),): {"controller_mutation_rate": 1.0}}).client("a", "").mutation
    )
    assert mutation is not None
    assert mutation.take(20, 0.0, is_strict=True) == 0
    assert mutation.take(1, 0.0, is_strict=True) == 9
    assert mutation.take(1, 9.0, is_strict=True) == 0
    assert mutation.meter.used == 21


def test_permissive_clients_are_throttled_for_what_they_took() -> None:
    mutation = (
        limiter({(("user", "a"),): {"controller_mutation_rate": 1.0}}).client("a", "").mutation
    )
    assert mutation is not None
    assert mutation.take(20, 0.0, is_strict=False) == 9
    assert mutation.take(1, 0.0, is_strict=False) == 10


def test_a_new_limit_applies_to_what_was_used_before() -> None:
    limits = limiter({(("user", "a"),): {"producer_byte_rate": 1000.0}})
    before = limits.client("a", "").produce
    assert before is not None
    assert before.charge(5000, 0.0) == 0
    limits.set_quotas(as_records({(("user", "a"),): {"producer_byte_rate": 100.0}}))
    after = limits.client("a", "").produce
    assert after is not None
    assert after.charge(0, 0.0) == 40
    limits.set_quotas({})
    assert limits.client("a", "").produce is None


def test_the_client_used_least_recently_is_forgotten() -> None:
    limits = limiter({(("client-id", None),): {"producer_byte_rate": 1.0}}, clients_max=2)
    for name in ("a", "b", "a", "c"):
        limits.client("user", name)
    assert len(limits) == 2
    assert {meter.scope for meter in limits.meters()} == {(None, "a"), (None, "c")}


def test_the_bytes_of_one_window() -> None:
    limits = limiter({(("user", "a"),): {"consumer_byte_rate": 100.0}})
    assert limits.fetch_bytes_max(limits.client("a", "")) == 1000
    assert limits.fetch_bytes_max(limits.client("b", "")) is None
