"""Quotas through the admin clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from harness.process.broker_process import BrokerProcess
from millstream.client import Admin, AsyncAdmin, BrokerError, QuotaEntity


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("quota")) as process:
        yield process


def test_quotas_are_set_listed_and_removed(broker: BrokerProcess) -> None:
    alice = QuotaEntity(user="alice")
    everyone = QuotaEntity(user=QuotaEntity.DEFAULT, client_id="app")
    with Admin(broker.bootstrap) as admin:
        done = admin.alter_quotas(
            {alice: {"producer_byte_rate": 1e6}, everyone: {"request_percentage": 12.5}}
        )
        assert done == {alice: None, everyone: None}
        assert admin.list_quotas() == {
            alice: {"producer_byte_rate": 1e6},
            everyone: {"request_percentage": 12.5},
        }
        assert admin.alter_quotas({alice: {"producer_byte_rate": None}}) == {alice: None}
        assert admin.alter_quotas({everyone: {"request_percentage": None}}) == {everyone: None}
        assert admin.list_quotas() == {}
        assert admin.alter_quotas({}) == {}


def test_an_entity_that_is_rejected_has_its_error(broker: BrokerProcess) -> None:
    bad, good = QuotaEntity(ip="nowhere"), QuotaEntity(ip="10.0.0.1")
    with Admin(broker.bootstrap) as admin:
        quota = {"connection_creation_rate": 5.0}
        found = admin.alter_quotas({bad: quota, good: quota}, validate_only=True)
        assert isinstance(found[bad], BrokerError)
        assert found[good] is None
        assert admin.list_quotas() == {}


def test_quotas_with_asyncio(broker: BrokerProcess) -> None:
    async def run() -> None:
        entity = QuotaEntity(client_id="app")
        async with AsyncAdmin(broker.bootstrap) as admin:
            await admin.alter_quotas({entity: {"consumer_byte_rate": 1000.0}})
            assert await admin.list_quotas() == {entity: {"consumer_byte_rate": 1000.0}}
            await admin.alter_quotas({entity: {"consumer_byte_rate": None}})

    asyncio.run(run())
