"""The mechanisms by which clients log in, and brokers on which every connection has to log in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.broker_process import BrokerProcess
from harness.process_cluster import ProcessCluster
from harness.token_issuer import AUDIENCE, ISSUER, IssuerServer

OAUTH = "OAUTHBEARER"


class Login(NamedTuple):
    """A user and a password for a mechanism; a token is the password of OAUTHBEARER."""

    mechanism: str
    user: str
    password: str


#: Users of `bootstrap.users.file`, except carol, who is in the settings.
LOGINS = {
    "PLAIN": Login("PLAIN", "carol", "of-carol"),
    "PLAIN-of-scram": Login("PLAIN", "alice", "pencil"),
    "SCRAM-SHA-256": Login("SCRAM-SHA-256", "alice", "pencil"),
    "SCRAM-SHA-512": Login("SCRAM-SHA-512", "bob", "pen,=cil"),
}


class Secure(NamedTuple):
    """Running brokers."""

    bootstrap: str
    issuer: IssuerServer

    def login(self, name: str) -> Login:
        if name == OAUTH:
            return Login(OAUTH, "alice", self.issuer.issuer.token("alice"))
        return LOGINS[name]


@contextmanager
def secure_brokers(folder: Path, count: int, issuer: IssuerServer) -> Iterator[Secure]:
    """Run brokers whose only listener has SASL, also for connections between them."""
    users = folder / "users"
    users.write_text("alice:pencil\nbob:pen,=cil\nbroker:of-broker\n")
    settings: dict[str, object] = {
        # The listener has the name that the harness gives it.
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
            'ScramLoginModule required username="broker" password="of-broker";'
        ),
        "listener.name.plaintext.plain.sasl.jaas.config": (
            'PlainLoginModule required user_carol="of-carol";'
        ),
        "bootstrap.users.file": users,
        "http.bearer.token": "of-the-test",
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/jwks",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "delegation.token.secret.key": "key of the brokers",
        "max.failed.authentications.per.ip": 1_000_000,
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    if count == 1:
        with BrokerProcess(folder, settings) as broker:
            yield Secure(broker.bootstrap, issuer)
            assert "Traceback" not in broker.log_text(), broker.log_tail()
        return
    replicated = {**settings, "default.replication.factor": 3, "min.insync.replicas": 2}
    with ProcessCluster(folder, count, replicated) as cluster:
        brokers = list(cluster)
        yield Secure(",".join(broker.bootstrap for broker in brokers), issuer)
        for broker in brokers:
            assert "Traceback" not in broker.log_text(), broker.log_tail()
