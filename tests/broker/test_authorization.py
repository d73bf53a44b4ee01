"""Every API as a client without rights, with rights on other resources, and with the rights that
the API's entry declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.api_case import CASES, Names, codes, expected_code
from harness.principal_server import PrincipalServerSet, literal, prefixed
from harness.raw_client import RawClient, values_batch
from millstream.broker.dispatch import OPEN, ApiEntry
from millstream.broker.handlers import ENTRIES, TELEMETRY_ENTRIES
from millstream.model.acl import DENIAL_CODES, Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.api import ApiKey
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest

ALL = ENTRIES + TELEMETRY_ENTRIES
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
TXN = ResourceType.TRANSACTIONAL_ID
DENIALS = frozenset(map(int, DENIAL_CODES.values()))
#: A client without any right, and a client with all rights on resources with similar names.
STRANGERS = ("mallory", "neighbour")
VERSIONS = [
    (entry, version)
    for entry in ENTRIES
    for version in range(entry.versions[0], entry.versions[1] + 1)
]


def api_name(entry: ApiEntry[Any, Any]) -> str:
    return entry.request.__name__.removesuffix("Request")


IDS = [f"{api_name(entry)}-{version}" for entry, version in VERSIONS]


def prepare(client: RawClient, name: str) -> Names:
    """Create a topic with a record, a group with an offset, and a transactional id."""
    topic_id = client.create_topic(name)
    names = Names(name, topic_id, f"{name}-group", f"{name}-txn")
    assert client.produce(name, values_batch(b"kept")).error_code == 0
    for kind, key in ((0, names.group), (1, names.transactional_id)):
        client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
    topic = OffsetCommitRequest.Topic(
        name=name, partitions=[OffsetCommitRequest.Topic.Partition(committed_offset=1)]
    )
    committed = client.call(OffsetCommitRequest(group_id=names.group, topics=[topic]), 9)
    assert set(codes(committed)) == {0}
    begun = client.call(
        InitProducerIdRequest(
            transactional_id=names.transactional_id, transaction_timeout_ms=60_000
        )
    )
    assert begun.error_code == 0
    return names


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(
        tmp_path_factory.mktemp("acl"), count=1, delegation_token_secret_key="key"
    ) as found:
        for kind, resources in (
            (TOPIC, ("orders2", "Orders", "order")),
            (GROUP, ("orders-group2", "Orders-group")),
            (TXN, ("orders-txn2", "orders-tx")),
        ):
            for name in resources:
                found.grant("neighbour", Operation.ALL, literal(kind, name))
        found.grant("neighbour", Operation.ALL, prefixed(TOPIC, "orders-x"))
        found.grant("neighbour", Operation.ALL, prefixed(GROUP, "orders-group-x"))
        yield found


@pytest.fixture(scope="module")
def names(brokers: PrincipalServerSet) -> Names:
    with brokers.client(1) as client:
        return prepare(client, "orders")


def state(brokers: PrincipalServerSet) -> Any:
    """Return what requests could have changed: metadata, logs, groups and transactions."""

    def look() -> Any:
        services = brokers.services(1)
        logs = {
            str(each.topic_partition): (each.log.log_start_offset, each.log.log_end_offset)
            for each in services.replicas
        }
        groups = {
            group.group_id: (group.state_name, list(group.member_ids))
            for group in services.groups.shards.all_groups()
        }
        transactions = {
            each.transactional_id: (each.state, each.producer_id, each.producer_epoch)
            for each in services.transactions.shards.all_transactions()
        }
        failures = dict(services.failures.counts)
        return services.catalog.image.revision, logs, groups, transactions, failures

    return brokers.ask(look)


@pytest.mark.parametrize("entry", ALL, ids=api_name)
def test_every_entry_declares_its_access_and_has_a_case(entry: ApiEntry[Any, Any]) -> None:
    assert entry.access is not None, "declare which rights the handler checks"
    case = CASES[entry.request.api_key]
    if entry.access == OPEN:
        assert case.code is None
        assert case.hidden is None
    else:
        assert case.code is not None or case.hidden is not None


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize(("entry", "version"), VERSIONS, ids=IDS)
def test_a_client_without_rights(
    brokers: PrincipalServerSet,
    names: Names,
    entry: ApiEntry[Any, Any],
    version: int,
    stranger: str,
) -> None:
    key = ApiKey(entry.request.api_key)
    case, code = CASES[key], expected_code(key, version)
    before = state(brokers)
    with brokers.client(1, f"as-{stranger}") as client:
        response = client.call(case.request(version, names), version)
    if code is not None:
        assert set(codes(response)) - {0} == {code}
    else:
        assert not DENIALS & set(codes(response))
    if case.hidden is not None:
        assert case.hidden(response) == []
    assert state(brokers) == before


@pytest.mark.parametrize("entry", ENTRIES, ids=api_name)
def test_the_declared_rights_are_enough(
    brokers: PrincipalServerSet, entry: ApiEntry[Any, Any]
) -> None:
    name = f"own-{api_name(entry).lower()}"
    with brokers.client(1) as admin:
        names = prepare(admin, name)
    for right in entry.access or ():
        # The case of an API may create a resource whose name begins with the resource's.
        resource = (
            literal(right.resource_type)
            if right.resource_type is ResourceType.CLUSTER
            else prefixed(right.resource_type, names.of(right.resource_type))
        )
        brokers.grant(name, right.operation, resource)
    version = entry.versions[1]
    with brokers.client(1, f"as-{name}") as client:
        response = client.call(
            CASES[ApiKey(entry.request.api_key)].request(version, names), version
        )
    assert not DENIALS & set(codes(response))


def test_a_denial_is_counted_and_recorded(brokers: PrincipalServerSet, names: Names) -> None:
    recorded: list[Any] = []

    class Trail:
        def record(self, event: Any, /) -> None:
            recorded.append(event)

    services = brokers.services(1)
    authorizer = services.authorizer
    assert authorizer is not None
    before, count = services.audit, authorizer.denials[Operation.READ, TOPIC]
    services.audit = Trail()
    try:
        with brokers.client(1, "as-mallory") as client:
            client.fetch("orders", 0)
    finally:
        services.audit = before
    (event,) = recorded
    assert (event.kind, event.action, event.principal) == ("denial", "Fetch", "User:mallory")
    assert (event.resource, event.outcome, event.detail) == (
        "topic:orders",
        "TOPIC_AUTHORIZATION_FAILED",
        "read",
    )
    assert event.client_id == "as-mallory"
    assert authorizer.denials[Operation.READ, TOPIC] == count + 1


def test_metadata_of_all_topics_shows_only_own_topics(
    brokers: PrincipalServerSet, names: Names
) -> None:
    with brokers.client(1) as admin:
        admin.create_topic("orders2")
    for version in range(1, 14):
        with brokers.client(1, "as-neighbour") as client:
            response = client.call(MetadataRequest(topics=None), version)
        assert [topic.name for topic in response.topics] == ["orders2"]


def test_metadata_by_id_does_not_name_a_topic(brokers: PrincipalServerSet, names: Names) -> None:
    wanted = MetadataRequest.Topic(name=None, topic_id=names.topic_id)
    with brokers.client(1, "as-mallory") as client:
        (row,) = client.call(MetadataRequest(topics=[wanted])).topics
    assert (row.error_code, row.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


def test_metadata_creates_no_topic_without_the_right(
    brokers: PrincipalServerSet, names: Names
) -> None:
    brokers.grant("describer", Operation.DESCRIBE, prefixed(TOPIC, "made-"))
    brokers.grant("maker", Operation.DESCRIBE, prefixed(TOPIC, "made-"))
    brokers.grant("maker", Operation.CREATE, prefixed(TOPIC, "made-"))
    wanted = MetadataRequest(topics=[MetadataRequest.Topic(name="made-1")])
    for user in ("mallory", "describer"):
        with brokers.client(1, f"as-{user}") as client:
            (row,) = client.call(wanted).topics
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "made-1" not in brokers.services(1).catalog.image.topics
    with brokers.client(1, "as-maker") as client:
        (row,) = client.call(wanted).topics
    assert row.error_code == 0


@pytest.mark.parametrize(
    ("operation", "resource", "is_allowed"),
    [
        (Operation.IDEMPOTENT_WRITE, literal(ResourceType.CLUSTER), True),
        (Operation.WRITE, literal(TOPIC, "any"), True),
        (Operation.READ, literal(TOPIC, "any"), False),
    ],
)
def test_producer_ids_without_a_transactional_id(
    brokers: PrincipalServerSet, operation: Operation, resource: Any, is_allowed: bool
) -> None:
    user = f"idempotent-{operation.name.lower()}"
    brokers.grant(user, operation, resource)
    with brokers.client(1, f"as-{user}") as client:
        code = client.call(InitProducerIdRequest()).error_code
    assert code == (0 if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def test_a_denied_coordinator_creates_no_internal_topic(tmp_path: Any) -> None:
    with PrincipalServerSet(tmp_path, count=1) as found:
        for kind in (0, 1):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["a", "b"])
            with found.client(1, "as-mallory") as client:
                response = client.call(request)
            assert set(codes(response.coordinators)) <= DENIALS
        assert len(found.services(1).catalog.image.topics) == 0
