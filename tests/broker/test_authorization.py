"""Every API as a client without rights, with rights on other resources, and with the rights that
the API's entry declares."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from broker.api_case import CASES, Names, codes, expected_code
from harness.in_process.principal_server import PrincipalServerSet, literal, prefixed
from harness.raw.raw_client import RawClient, produce_request, values_batch
from millstream.broker import server
from millstream.broker.dispatch import OPEN, ApiEntry
from millstream.broker.handlers import ENTRIES, TELEMETRY_ENTRIES
from millstream.broker.login.login_secret import login_secret
from millstream.metadata.catalog import Catalog
from millstream.metadata.security_record import AclEntry, acl_key, encode_acls
from millstream.model.acl import DENIAL_CODES, Operation, Permission, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.api import ApiKey
from millstream.wire.messages.create_partitions import CreatePartitionsRequest
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from millstream.wire.messages.elect_leaders import ElectLeadersRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.produce import ProduceRequest

ALL = ENTRIES + TELEMETRY_ENTRIES
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
TXN = ResourceType.TRANSACTIONAL_ID
INVALID = ErrorCode.INVALID_REQUEST
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TXN_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
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


def _growth(topic: str) -> CreatePartitionsRequest.Topic:
    return CreatePartitionsRequest.Topic(name=topic, count=2, assignments=None)


def _creation(topic: str) -> CreateTopicsRequest.Topic:
    return CreateTopicsRequest.Topic(name=topic, num_partitions=1, replication_factor=1)


def _description(resource_type: int) -> DescribeConfigsRequest:
    kind = DescribeConfigsRequest.Resource
    return DescribeConfigsRequest(resources=[kind(resource_type=resource_type, resource_name="1")])


def _alteration(resource_type: int, name: str = "1") -> IncrementalAlterConfigsRequest:
    kind = IncrementalAlterConfigsRequest.Resource
    configs = [kind.Config(name="root", value="INFO")]
    resource = kind(resource_type=resource_type, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource])


def _transactional_produce(topic: str) -> ProduceRequest:
    batch = values_batch(
        b"x", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    return produce_request(topic, batch)


@pytest.mark.parametrize(
    ("request_", "version", "codes_of_stranger"),
    [
        (_transactional_produce("orders"), 11, {TXN_DENIED}),
        (_transactional_produce("orders"), 12, {TXN_DENIED}),
        (DeleteTopicsRequest(topic_names=["orders", "orders"]), 5, {INVALID}),
        (CreatePartitionsRequest(topics=[_growth("orders")] * 2), 3, {INVALID}),
        (CreateTopicsRequest(topics=[_creation("__cluster_metadata")]), 7, {INVALID}),
        (FindCoordinatorRequest(key_type=2, coordinator_keys=["g"]), 5, {INVALID}),
        (FindCoordinatorRequest(key_type=2, coordinator_keys=["g"]), 6, {CLUSTER_DENIED}),
        (_description(7), 4, {INVALID}),
        (_description(4), 4, {CLUSTER_DENIED}),
        (_alteration(7), 1, {INVALID}),
        (_alteration(4), 1, {CLUSTER_DENIED}),
        (_alteration(4, "99"), 1, {INVALID}),
        (_alteration(8), 1, {CLUSTER_DENIED}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_request_with_several_errors_gets_the_one_that_kafka_finds_first(
    brokers: PrincipalServerSet,
    names: Names,
    request_: Any,
    version: int,
    codes_of_stranger: set[ErrorCode],
) -> None:
    before = state(brokers)
    with brokers.client(1, "as-mallory") as client:
        response = client.call(request_, version)
    assert set(codes(response)) - {0} == codes_of_stranger
    assert state(brokers) == before


def test_a_topic_that_is_named_twice_is_neither_deleted_nor_grown(
    brokers: PrincipalServerSet, names: Names
) -> None:
    before = state(brokers)
    with brokers.client(1) as admin:
        grown = admin.call(CreatePartitionsRequest(topics=[_growth("orders")] * 2))
        deleted = admin.call(DeleteTopicsRequest(topic_names=["orders", "orders"]), 5)
    assert [row.error_code for row in grown.results] == [INVALID]
    assert [row.error_code for row in deleted.responses] == [INVALID]
    assert state(brokers) == before


def test_an_election_that_is_denied_names_its_partitions(
    brokers: PrincipalServerSet, names: Names
) -> None:
    request = ElectLeadersRequest(
        topic_partitions=[ElectLeadersRequest.Topic(topic="orders", partitions=[0, 1])]
    )
    for version in range(3):
        with brokers.client(1, "as-mallory") as client:
            (topic,) = client.call(request, version).replica_election_results
        assert [row.error_code for row in topic.partition_result] == [CLUSTER_DENIED] * 2


def test_a_missing_topic_has_authorized_operations(
    brokers: PrincipalServerSet, names: Names
) -> None:
    brokers.grant("looker", Operation.READ, prefixed(TOPIC, "missing"))
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.Topic(name="missing")]
    )
    with brokers.client(1, "as-looker") as client:
        (row,) = client.call(request).topics
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert row.topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE


def test_a_change_of_acls_during_the_start_is_not_lost(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = literal(TOPIC, "early")
    entry = AclEntry("User:alice", "*", Operation.READ, Permission.ALLOW)

    async def make_secret(catalog: Catalog, random: Random) -> bytes:
        await catalog.alter_key(acl_key(resource), lambda _: encode_acls([entry]))
        return await login_secret(catalog, random)

    monkeypatch.setattr(server, "login_secret", make_secret)
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    settings = {"listeners": listeners, "sasl_enabled_mechanisms": "SCRAM-SHA-256"}
    with PrincipalServerSet(tmp_path, count=1, **settings) as found:
        authorizer = found.services(1).authorizer
        assert authorizer is not None
        assert authorizer.would_allow("User:alice", "10.0.0.1", Operation.READ, TOPIC, "early")
