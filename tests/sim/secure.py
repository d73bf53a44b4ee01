"""Secure clusters in the simulator: logins by SCRAM between brokers and of clients, and ACLs.

Connections are not encrypted: the simulated network has no TLS. Logins expire soon, so that brokers
replace their connections during a run.
"""

from __future__ import annotations

import functools
import hashlib
from random import Random
from typing import Final

from millstream.broker.login.peer_login import PeerLogin
from millstream.env.network import Network
from millstream.metadata import security_record as records
from millstream.metadata.security_record import AclEntry, AclResource
from millstream.metadata.store.memory import MemoryStore
from millstream.metadata.store.port import Put
from millstream.model.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from millstream.net.peer_network import PeerNetwork
from millstream.protocol.connection_setting import Login
from millstream.security.sasl.exchange import Mechanism
from millstream.security.sasl.scram import ITERATIONS_MIN, make_credential

# Every login hashes one of two passwords, thousands of times, with the same salt.
hashlib.pbkdf2_hmac = functools.cache(hashlib.pbkdf2_hmac)

PROTOCOL: Final = "SASL_PLAINTEXT"
BROKER, CLIENT = "broker", "client"
_MECHANISM: Final = Mechanism.SCRAM_SHA_256
_PASSWORDS: Final = {BROKER: "broker-secret", CLIENT: "client-secret"}
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS: Final = {
    "sasl.enabled.mechanisms": _MECHANISM,
    "sasl.mechanism.inter.broker.protocol": _MECHANISM,
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
        f'{_MODULE} required username="{BROKER}" password="{_PASSWORDS[BROKER]}";'
    ),
    "connections.max.reauth.ms": "5000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{BROKER}",
}
_CREDENTIALS: Final = {
    name: make_credential(_MECHANISM, password, b"salt", ITERATIONS_MIN)
    for name, password in _PASSWORDS.items()
}
#: What the clients of a run do, and no more.
_RIGHTS: Final = (
    (ResourceType.TOPIC, "*", (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.ALTER)),
    (ResourceType.GROUP, "*", (Operation.READ,)),
    (ResourceType.TRANSACTIONAL_ID, "*", (Operation.WRITE,)),
    (
        ResourceType.CLUSTER,
        CLUSTER_NAME,
        (Operation.ALTER, Operation.DESCRIBE, Operation.IDEMPOTENT_WRITE),
    ),
)


def create_users(store: MemoryStore) -> None:
    """Put the users of brokers and clients, and the clients' ACLs, into an empty store."""
    puts = [
        Put(records.user_key(name), records.encode_credentials({_MECHANISM: credential}))
        for name, credential in _CREDENTIALS.items()
    ]
    for resource_type, name, operations in _RIGHTS:
        resource = AclResource(resource_type, PatternType.LITERAL, name)
        entries = [
            AclEntry(f"User:{CLIENT}", "*", operation, Permission.ALLOW) for operation in operations
        ]
        puts.append(Put(records.acl_key(resource), records.encode_acls(entries)))
    assert store.transact([], puts).succeeded


def client_network(network: Network, name: str, random: Random) -> Network:
    """Return a network whose connections are logged in as the clients' user."""
    login = Login(_MECHANISM, CLIENT, _PASSWORDS[CLIENT])
    return PeerNetwork(network, log_in=PeerLogin(login, name, random, has_threads=False).log_in)
