"""Each API as clients with few rights: Apache Kafka and Millstream respond with the same errors.

Both brokers get the same topics, groups and ACLs. Each client has one right, or few, on resources
of its own, and sends a request of every API in every version that both brokers have. Lists,
authorized operations and delegation tokens are compared as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from broker.api_case import CASES, Names, codes
from harness.in_process.principal_server import PrincipalServerSet
from harness.process.broker_process import HOST, free_port, wait_until
from harness.process.kafka_process import kafka_broker
from harness.raw.raw_client import Closed, RawClient, values_batch
from harness.raw.raw_login import log_in
from millstream.broker.handlers import ENTRIES
from millstream.model.acl import CLUSTER_NAME, Operation, PatternType, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.api import PRIVATE_FROM, ApiKey
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_acls import CreateAclsRequest
from millstream.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from millstream.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

pytestmark = pytest.mark.soak

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TXN = ResourceType.TRANSACTIONAL_ID
#: The rights of each client, on resources whose names begin with its own.
RIGHTS: Final[Mapping[str, tuple[tuple[Operation, ResourceType], ...]]] = {
    "none": (),
    "topicread": ((Operation.READ, _TOPIC),),
    "topicwrite": ((Operation.WRITE, _TOPIC),),
    "topicdescribe": ((Operation.DESCRIBE, _TOPIC),),
    "topicalter": ((Operation.ALTER, _TOPIC), (Operation.ALTER_CONFIGS, _TOPIC)),
    "topicdelete": ((Operation.DELETE, _TOPIC),),
    "topiccreate": ((Operation.CREATE, _TOPIC),),
    "groupread": ((Operation.READ, _GROUP),),
    "groupdelete": ((Operation.DELETE, _GROUP),),
    "consumer": ((Operation.READ, _GROUP), (Operation.READ, _TOPIC)),
    "txn": ((Operation.WRITE, _TXN),),
    "txngroup": ((Operation.WRITE, _TXN), (Operation.READ, _GROUP)),
    "clusterdescribe": ((Operation.DESCRIBE, _CLUSTER),),
    "clusteralter": ((Operation.ALTER, _CLUSTER),),
    "clusterconfigs": ((Operation.ALTER_CONFIGS, _CLUSTER),),
    "clusteraction": ((Operation.CLUSTER_ACTION, _CLUSTER),),
    "all": ((Operation.ALL, _TOPIC), (Operation.ALL, _GROUP), (Operation.ALL, _TXN)),
}
#: These run last: other APIs need what they delete.
LAST: Final = (ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS, ApiKey.DELETE_TOPICS)
#: Both are about the login, which the brokers here do in different ways.
LOGIN: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_PROTOCOLS: Final = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Peer:
    """One of the two brokers."""

    def __init__(self, connect: Callable[[str | None], RawClient]) -> None:
        self._connect = connect
        with connect(None) as admin:
            _create_acls(admin)
            self.names = {name: _prepare(admin, name) for name in RIGHTS}
            hello = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            apis = admin.call(hello, 3).api_keys
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in apis}

    def call(self, client: str, request: Any, version: int) -> Any:
        with self._connect(client) as connection:
            return connection.call(request, version)

    def ask(self, client: str, key: ApiKey, version: int) -> list[str]:
        """Return the errors in the response to a request of a client."""
        request = CASES[key].request(version, self.names[client])
        if key in (ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS):
            request.timeout_ms = 10_000
        elif key == ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS:
            # Kafka does not respond if it denies the request for all users with null.
            request.users = []
        with self._connect(client) as connection:
            try:
                response = connection.call(request, version)
            except Closed:
                return ["closed"]
        return sorted({ErrorCode(code).name for code in codes(response)})


def _create_acls(admin: RawClient) -> None:
    creations = [
        CreateAclsRequest.Creation(
            resource_type=kind,
            resource_name=CLUSTER_NAME if kind is _CLUSTER else f"{name}-",
            resource_pattern_type=(
                PatternType.LITERAL if kind is _CLUSTER else PatternType.PREFIXED
            ),
            principal=f"User:{name}",
            host="*",
            operation=operation,
            permission_type=3,
        )
        for name, rights in RIGHTS.items()
        for operation, kind in rights
    ]
    rows = admin.call(CreateAclsRequest(creations=creations), 3).results
    assert {row.error_code for row in rows} == {0}


def _prepare(admin: RawClient, name: str) -> Names:
    """Create a topic with a record, a group with an offset, and a transactional id."""
    topic = f"{name}-topic"
    names = Names(topic, admin.create_topic(topic), f"{name}-group", f"{name}-txn")
    rows = [OffsetCommitRequest.Topic.Partition(committed_offset=1)]
    commit = OffsetCommitRequest(
        group_id=names.group, topics=[OffsetCommitRequest.Topic(name=topic, partitions=rows)]
    )
    begin = InitProducerIdRequest(
        transactional_id=names.transactional_id, transaction_timeout_ms=60_000
    )
    for kind, key in ((0, names.group), (1, names.transactional_id)):
        find = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        wait_until(lambda find=find: set(codes(admin.call(find, 4))) == {0}, "a coordinator")
    wait_until(lambda: admin.produce(topic, values_batch(b"kept")).error_code == 0, "a leader")
    wait_until(lambda: set(codes(admin.call(commit, 9))) == {0}, "the group")
    wait_until(lambda: admin.call(begin, 5).error_code == 0, "the transactional id")
    return names


@contextmanager
def _kafka() -> Iterator[Peer]:
    with kafka_broker() as broker:
        port = free_port()
        path = broker.folder / "server.properties"
        users = " ".join(f'user_{name}="{name}"' for name in RIGHTS)
        lines = [
            f"{line},SASL_PLAINTEXT://{HOST}:{port}"
            if line.startswith(("listeners=", "advertised.listeners="))
            else line
            for line in path.read_text().splitlines()
        ]
        lines += [
            f"listener.security.protocol.map={_PROTOCOLS}",
            "sasl.enabled.mechanisms=PLAIN",
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={_PLAIN} required {users};",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
            "delegation.token.secret.key=key",
        ]
        path.write_text("\n".join(lines) + "\n")
        broker.start()

        def connect(name: str | None) -> RawClient:
            client = RawClient(HOST, broker.port if name is None else port, timeout_s=30)
            if name is not None:
                assert log_in(client, name, name, "PLAIN").error_code == 0
            return client

        yield Peer(connect)


@contextmanager
def _millstream(folder: Path) -> Iterator[Peer]:
    with PrincipalServerSet(folder, count=1, delegation_token_secret_key="key") as brokers:

        def connect(name: str | None) -> RawClient:
            return brokers.client(1) if name is None else brokers.client(1, f"as-{name}")

        yield Peer(connect)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(_kafka()),
            stack.enter_context(_millstream(tmp_path_factory.mktemp("parity"))),
        )


def test_errors_are_those_of_kafka(peers: tuple[Peer, Peer]) -> None:
    kafka, _ = peers
    served = {ApiKey(entry.request.api_key): entry.versions for entry in ENTRIES}
    keys = [key for key in served if key < PRIVATE_FROM and key not in (*LOGIN, *LAST)]
    different = []
    asked = 0
    for key in (*keys, *LAST):
        (first, last), (own_first, own_last) = kafka.versions[key], served[key]
        for version in range(max(first, own_first), min(last, own_last) + 1):
            # Earlier versions differ in the form of their errors: one client shows it.
            names = RIGHTS if version == min(last, own_last) else ("none",)
            for name in names:
                expected, found = (peer.ask(name, key, version) for peer in peers)
                asked += 1
                if expected != found:
                    different.append((key.name, version, name, expected, found))
    assert different == []
    assert asked > 1000


def _shown(peer: Peer, client: str) -> dict[str, object]:
    """Return what a client sees of all topics, groups, transactions, and of its rights."""
    names = peer.names.values()
    topics = [MetadataRequest.Topic(name=each.topic) for each in names]
    topics.append(MetadataRequest.Topic(name="missing"))
    wanted = MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    metadata = peer.call(client, wanted, 10)
    every = MetadataRequest(topics=None, include_topic_authorized_operations=True)
    pages = DescribeTopicPartitionsRequest(topics=[])
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    groups = DescribeGroupsRequest(
        groups=[each.group for each in names], include_authorized_operations=True
    )
    offsets = OffsetFetchRequest(
        groups=[OffsetFetchRequest.Group(group_id=each.group, topics=None) for each in names]
    )
    listed = peer.call(client, ListGroupsRequest(), 5)
    transactions = peer.call(client, ListTransactionsRequest(), 1)
    return {
        "topics": _operations(metadata.topics),
        "cluster": metadata.cluster_authorized_operations,
        "described cluster": peer.call(client, cluster, 1).cluster_authorized_operations,
        "all topics": _operations(peer.call(client, every, 13).topics),
        "pages of topics": _operations(peer.call(client, pages, 0).topics),
        "groups": sorted(
            (row.group_id, row.error_code, row.authorized_operations)
            for row in peer.call(client, groups, 5).groups
        ),
        "listed groups": sorted(row.group_id for row in listed.groups),
        "transactions": sorted(row.transactional_id for row in transactions.transaction_states),
        "offsets": sorted(
            (row.group_id, row.error_code, [topic.name for topic in row.topics])
            for row in peer.call(client, offsets, 8).groups
        ),
    }


def _operations(topics: Any) -> list[tuple[str, int, int]]:
    return sorted(
        (row.name or "", row.error_code, row.topic_authorized_operations)
        for row in topics
        if not (row.name or "").startswith("__")
    )


@pytest.mark.parametrize("client", RIGHTS)
def test_lists_and_authorized_operations_are_those_of_kafka(
    peers: tuple[Peer, Peer], client: str
) -> None:
    kafka, millstream = peers
    assert _shown(millstream, client) == _shown(kafka, client)


def _use_tokens(peer: Peer) -> dict[str, object]:
    """Use delegation tokens as their owner, requester and renewer, and as another client."""
    may_create = CreateAclsRequest.Creation(
        resource_type=ResourceType.USER,
        resource_name="User:all",
        principal="User:none",
        host="*",
        operation=Operation.CREATE_TOKENS,
        permission_type=3,
    )
    with peer._connect(None) as admin:
        rows = admin.call(CreateAclsRequest(creations=[may_create]), 3).results
        assert [row.error_code for row in rows] == [0]
    renewer = CreateDelegationTokenRequest.Renewer(
        principal_type="User", principal_name="topicread"
    )
    of_all = {"owner_principal_type": "User", "owner_principal_name": "all"}

    def create(client: str, **fields: Any) -> Any:
        return peer.call(client, CreateDelegationTokenRequest(max_lifetime_ms=-1, **fields), 3)

    def is_created() -> bool:
        nonlocal other
        other = create("none", **of_all)
        return bool(other.error_code == 0)

    other: Any = None
    wait_until(is_created, "the right to create tokens")
    own = create("all", renewers=[renewer])
    found: dict[str, object] = {
        "denied": create("topicread", **of_all).error_code,
        "a group renews": create(
            "all",
            renewers=[
                CreateDelegationTokenRequest.Renewer(principal_type="Group", principal_name="g")
            ],
        ).error_code,
    }
    labels = {own.token_id: "own", other.token_id: "other"}

    def visible(client: str, *owners: str) -> list[str]:
        wanted = [
            DescribeDelegationTokenRequest.Owner(principal_type="User", principal_name=name)
            for name in owners
        ]
        request = DescribeDelegationTokenRequest(owners=wanted or None)
        tokens = peer.call(client, request, 3).tokens
        return sorted(labels[each.token_id] for each in tokens)

    wait_until(lambda: len(visible("all")) == 2, "both tokens")
    for client in ("all", "none", "topicread", "txn"):
        for owners in ((), ("all",), ("none",)):
            found[f"{client} sees {owners}"] = visible(client, *owners)

    def renew(client: str, token: Any) -> int:
        request = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=60_000)
        return int(peer.call(client, request, 2).error_code)

    def expire(client: str, token: Any, period_ms: int) -> tuple[int, bool]:
        request = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
        response = peer.call(client, request, 2)
        is_near = abs(response.expiry_timestamp_ms - time.time() * 1000) < 60_000
        return response.error_code, is_near or response.error_code != 0

    for client in ("txn", "none", "topicread"):
        found[f"{client} renews"] = renew(client, own), renew(client, other)
    found["expires soon"] = expire("all", own, 1)
    wait_until(lambda: expire("all", own, 1)[0] != 0, "the expiry")
    found["expired"] = (
        renew("all", own), expire("txn", own, -1), expire("all", own, 10), expire("all", own, -1),
    )  # fmt: skip
    wait_until(lambda: renew("all", own) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "its end")
    return found


def test_delegation_tokens_are_those_of_kafka(peers: tuple[Peer, Peer]) -> None:
    kafka, millstream = peers
    assert _use_tokens(millstream) == _use_tokens(kafka)
