"""Each API as clients with few rights: Apache Kafka and Millstream respond with the same errors.

Both brokers get the same topics, groups and ACLs. Each client has one right, or few, on resources
of its own, and sends a request of every API in every version that both brokers have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from broker.api_case import CASES, Names, codes
from harness.broker_process import HOST, free_port, wait_until
from harness.kafka_process import kafka_broker
from harness.principal_server import PrincipalServerSet
from harness.raw_client import Closed, RawClient, values_batch
from harness.raw_login import log_in
from millstream.broker.handlers import ENTRIES
from millstream.model.acl import CLUSTER_NAME, Operation, PatternType, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.api import PRIVATE_FROM, ApiKey
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_acls import CreateAclsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest

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
