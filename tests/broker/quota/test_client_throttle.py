"""Which requests are charged, and with what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.in_process.manual_clock import ManualClock
from millstream.broker.quota.client_throttle import ClientThrottle, MutationQuota
from millstream.metadata.security_record import QuotaEntity, Quotas
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map
from millstream.model.principal import ANONYMOUS, Principal
from millstream.security.quota.limiter import Limiter
from millstream.security.quota.rate import WindowOptions
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from millstream.wire.messages.append_audit import AppendAuditRequest
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from millstream.wire.schema import Message

WINDOW = WindowOptions(samples=2, window_s=1.0)
ALICE = (("user", "alice"),)


def throttle(**quotas: float) -> ClientThrottle:
    limiter = Limiter(WINDOW, WINDOW)
    records: dict[QuotaEntity, Quotas] = {ALICE: Map(quotas)}
    limiter.set_quotas(records)
    return ClientThrottle(limiter, ManualClock(0.0))


def context(
    quotas: ClientThrottle | None = None,
    version: int = 12,
    user: str = "alice",
    *,
    is_broker: bool = True,
) -> Any:
    return SimpleNamespace(
        holds_cluster=lambda operation: is_broker,
        client=SimpleNamespace(principal=Principal("User", user), login=None),
        client_id=None,
        version=version,
        services=SimpleNamespace(quotas=quotas, clock=ManualClock(0.0)),
    )


def test_produced_bytes_are_charged() -> None:
    quotas = throttle(producer_byte_rate=1000)
    assert quotas.charge(ProduceRequest(), context(), 1000, 0.0) == 0
    assert quotas.charge(ProduceRequest(), context(), 500, 0.0) == 500
    assert quotas.charge(ProduceRequest(), context(user="bob"), 10**9, 0.0) == 0


def test_other_requests_have_no_bytes() -> None:
    quotas = throttle(producer_byte_rate=1000)
    assert quotas.charge(MetadataRequest(), context(), 10**9, 1.0) == 0


def test_the_longer_throttling_counts() -> None:
    quotas = throttle(producer_byte_rate=1000, request_percentage=1)
    assert quotas.charge(ProduceRequest(), context(), 10, 10.0) == 1000
    assert quotas.charge(ProduceRequest(), context(), 5000, 0.0) == 4010


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (FetchRequest(replica_state=FetchRequest.ReplicaState(replica_id=2)), 17),
        (WriteTxnMarkersRequest(), 1),
        (AddPartitionsToTxnRequest(), 4),
        (AppendAuditRequest(), 0),
    ],
)
def test_brokers_are_exempt(request_: Message, version: int) -> None:
    quotas = throttle(request_percentage=0.001)
    assert quotas.charge(request_, context(version=version), 100, 100.0) == 0
    assert quotas.request_meter(request_, context(version=version)) is None
    # Without the right of a broker, a client only claims to be one.
    assert quotas.charge(request_, context(version=version, is_broker=False), 100, 100.0) > 0


@pytest.mark.parametrize(
    ("request_", "version"), [(FetchRequest(), 17), (AddPartitionsToTxnRequest(), 3)]
)
def test_clients_that_send_the_same_requests_are_not(request_: Message, version: int) -> None:
    quotas = throttle(request_percentage=0.001)
    assert quotas.charge(request_, context(version=version), 100, 100.0) > 0


def test_logins_are_exempt() -> None:
    limiter = Limiter(WINDOW, WINDOW)
    quotas: dict[QuotaEntity, Quotas] = {(("user", None),): Map({"request_percentage": 0.001})}
    limiter.set_quotas(quotas)
    throttling = ClientThrottle(limiter, ManualClock(0.0))
    anonymous = context()
    anonymous.client.principal = ANONYMOUS
    assert throttling.charge(MetadataRequest(), anonymous, 0, 1.0) > 0
    anonymous.client.login = object()
    assert throttling.charge(MetadataRequest(), anonymous, 0, 1.0) == 0


def test_a_fetch_that_is_throttled_is_not_charged() -> None:
    quotas = throttle(consumer_byte_rate=1000)
    assert quotas.charge_fetch(context(), 900) == 0
    assert quotas.charge_fetch(context(), 900) == 800
    assert quotas.charge_fetch(context(), 100) == 0


def test_a_batch_above_the_whole_window_passes_when_the_window_is_empty() -> None:
    quotas = throttle(consumer_byte_rate=1000)
    assert quotas.fetch_bytes_max(context()) == 1000
    assert quotas.charge_fetch(context(), 10**9) == 0
    assert quotas.charge_fetch(context(), 1) > 0


def test_a_client_above_its_request_time_fetches_nothing() -> None:
    quotas = throttle(request_percentage=1)
    quotas.charge(MetadataRequest(), context(), 0, 10.0)
    assert quotas.charge_fetch(context(), 100) == 1000
    assert quotas.charge_fetch(context(), 0) == 0


def test_a_strict_mutation_quota_rejects_what_comes_after_it_is_exhausted() -> None:
    quota = MutationQuota(context(throttle(controller_mutation_rate=1), 6), strict_since=6)
    quota.take(5)
    assert quota.throttle_ms == 0
    with pytest.raises(BrokerError) as error:
        quota.take(1)
    assert error.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert quota.throttle_ms == 3000


def test_a_permissive_mutation_quota_throttles_afterwards() -> None:
    quota = MutationQuota(context(throttle(controller_mutation_rate=1), 5), strict_since=6)
    quota.take(5)
    quota.take(1)
    assert quota.throttle_ms == 4000


def test_without_quotas_mutations_are_free() -> None:
    quota = MutationQuota(context(None, 6), strict_since=6)
    quota.take(10**6)
    assert quota.throttle_ms == 0
