"""ACLs through `Admin` and `AsyncAdmin`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from harness.in_process.principal_server import PrincipalServerSet
from millstream import Acl, AclFilter, Admin, AsyncAdmin, BrokerError, UsageError

READ = Acl(principal="User:alice", operation="Read", resource_type="TOPIC", resource_name="orders")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(tmp_path_factory.mktemp("acl"), count=1) as found:
        yield found


def test_acls_are_created_listed_and_deleted(brokers: PrincipalServerSet) -> None:
    with Admin(brokers.address(1)) as admin:
        assert admin.create_acls([READ, READ]) == {READ: None}
        assert admin.list_acls() == [READ]
        wanted = AclFilter(resource_name="orders", pattern_type="match")
        assert admin.delete_acls([wanted]) == {wanted: [READ]}
        assert admin.list_acls(AclFilter(principal="User:alice")) == []


def test_an_acl_that_is_not_valid_has_an_error(brokers: PrincipalServerSet) -> None:
    wrong = Acl(
        principal="User:alice", operation="all", resource_type="cluster", resource_name="mine"
    )
    with Admin(brokers.address(1)) as admin:
        outcome = admin.create_acls([wrong])[wrong]
    assert isinstance(outcome, BrokerError)
    assert outcome.name == "INVALID_REQUEST"


def test_terms_are_checked_and_written_in_one_way() -> None:
    assert READ.operation == "read"
    assert READ.resource_type == "topic"
    with pytest.raises(UsageError, match="operation='sing' is not allowed"):
        AclFilter(operation="sing")


def test_asyncio(brokers: PrincipalServerSet) -> None:
    async def scenario() -> None:
        async with AsyncAdmin(brokers.address(1)) as admin:
            await admin.create_acls([READ])
            assert await admin.list_acls() == [READ]
            assert await admin.delete_acls([AclFilter.exactly(READ)]) == {
                AclFilter.exactly(READ): [READ]
            }

    asyncio.run(scenario())


def test_a_client_without_rights(brokers: PrincipalServerSet) -> None:
    with (
        Admin(brokers.address(1), config={"client.id": "as-mallory"}) as admin,
        pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"),
    ):
        admin.list_acls()
