"""The mechanisms by which clients log in, and brokers on which every connection has to log in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from harness.process.broker_process import BrokerProcess
from harness.process.process_cluster import ProcessCluster
from harness.process.tls_process import TlsHome
from harness.token_issuer import AUDIENCE, ISSUER, IssuerServer

OAUTH = "OAUTHBEARER"


class Login(NamedTuple):
    """A user and a password for a mechanism; a token is the password of OAUTHBEARER."""

    mechanism: str
    user: str
    password: str
    #: The authority of the brokers' certificates; empty for brokers without TLS.
    ca: str = ""
    #: Where clients that fetch their tokens do so.
    token_url: str = ""

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.ca else "SASL_PLAINTEXT"


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
    ca: str

    def login(self, name: str, **claims: object) -> Login:
        """Return a login; `claims` change the token."""
        if name != OAUTH:
            return LOGINS[name]._replace(ca=self.ca)
        token = self.issuer.issuer.token("alice", **claims)
        return Login(OAUTH, "alice", token, self.ca, token_url(self.issuer, claims))


def token_url(issuer: IssuerServer, claims: Mapping[str, object]) -> str:
    """Return where clients fetch tokens with these claims."""
    query = urlencode({"claims": json.dumps(claims)})
    return f"{issuer.url}/token?{query}"


@contextmanager
def secure_brokers(folder: Path, count: int, issuer: IssuerServer) -> Iterator[Secure]:
    """Run brokers whose only listener has SASL, also for connections between them. More than one
    broker also have TLS."""
    users = folder / "users"
    users.write_text("alice:pencil\nbob:pen,=cil\nbroker:of-broker\n")
    settings: dict[str, object] = {
        # The listener has the name that the harness gives it.
        "listener.security.protocol.map": (
            "PLAINTEXT:SASL_PLAINTEXT" if count == 1 else "PLAINTEXT:SASL_SSL"
        ),
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
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice;User:broker",
        "allow.everyone.if.no.acl.found": True,
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
            yield Secure(broker.bootstrap, issuer, "")
            assert "Traceback" not in broker.log_text(), broker.log_tail()
        return
    tls = TlsHome(folder / "tls")
    replicated = {
        **settings,
        **tls.settings(),
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
    }
    with ProcessCluster(folder, count, replicated) as cluster:
        brokers = list(cluster)
        yield Secure(",".join(broker.bootstrap for broker in brokers), issuer, tls.ca)
        for broker in brokers:
            assert "Traceback" not in broker.log_text(), broker.log_tail()
