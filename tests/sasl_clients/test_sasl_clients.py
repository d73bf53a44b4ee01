"""Real clients log in by each mechanism, on one broker and on three that log in to each other."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import millstream
from harness.brokers import ONE, THREE
from harness.java import CACHE
from harness.token_issuer import IssuerServer, TokenIssuer, issuer_server
from kafka_tools.runner import ToolRunner
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.cluster_client import ClusterClient
from millstream.protocol.connection_setting import connection_settings
from sasl_clients.client import CLIENTS, LoginError, java_properties, java_tool
from sasl_clients.login import LOGINS, OAUTH, Login, Secure, secure_brokers

CONFIGS = "kafka-configs"
TOKENS = "kafka-delegation-tokens"
TOPICS = "kafka-topics"
PRODUCER = "kafka-console-producer"
CONSUMER = "kafka-console-consumer"
NAMES = [*LOGINS, OAUTH]
_numbers = itertools.count()
#: The numbers of brokers, for the fixture `secure`.
ONE_BROKER, THREE_BROKERS = 1, 3

pytestmark = pytest.mark.xdist_group("sasl_clients")


def names_of(client: str) -> list[str]:
    """Return the logins of a client.

    kcat takes OAuth tokens only from its own requests. Debian's has librdkafka 2.0, which repeats
    the client's part of the nonce in SCRAM and is rejected, also by Kafka."""
    return ["PLAIN", "PLAIN-of-scram"] if client == "kcat" else NAMES


@pytest.fixture(scope="module")
def issuer() -> Iterator[IssuerServer]:
    with issuer_server(TokenIssuer()) as server:
        yield server


@pytest.fixture(scope="module")
def tools(issuer: IssuerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/token"
    with ToolRunner(tmp_path_factory.mktemp("tools"), allowed) as runner:
        yield runner


@pytest.fixture(scope="module")
def started_brokers(
    issuer: IssuerServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Secure]]:
    """Return a function that returns one broker or three. Both run until the last test: a fixture
    with these parameters would start them for each test."""
    with ExitStack() as running:

        @functools.cache
        def start(count: int) -> Secure:
            folder = tmp_path_factory.mktemp("secure")
            return running.enter_context(secure_brokers(folder, count, issuer))

        yield start


@pytest.fixture(params=[ONE, THREE])
def secure(request: pytest.FixtureRequest, started_brokers: Callable[[int], Secure]) -> Secure:
    return started_brokers(request.param)


def new_topic() -> str:
    return f"topic-{next(_numbers)}"


def admin_of(secure: Secure) -> millstream.Admin:
    _, user, password = secure.login("SCRAM-SHA-512")
    return millstream.Admin(
        secure.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=user,
        sasl_password=password,
    )


def require(client: str) -> None:
    states = json.loads((CACHE / "tools.json").read_text())
    if client in states and not states[client]["available"]:
        pytest.skip(f"{client} is not available: {states[client]['reason']}")


@pytest.mark.parametrize(
    ("secure", "client", "name"),
    [(ONE_BROKER, client, name) for client in CLIENTS for name in names_of(client)]
    + [(THREE_BROKERS, client, name) for client in CLIENTS for name in names_of(client)[-2:]],
    indirect=["secure"],
)
def test_a_client_writes_and_reads(secure: Secure, client: str, name: str) -> None:
    require(client)
    assert CLIENTS[client](secure.bootstrap, secure.login(name), new_topic()) == b"v"


@pytest.mark.parametrize(
    ("secure", "client", "name"),
    [
        (ONE_BROKER, client, name)
        for client in CLIENTS
        for name in names_of(client)
        if name in ("PLAIN", "SCRAM-SHA-256", OAUTH)
    ],
    indirect=["secure"],
)
def test_a_client_with_a_wrong_password_gets_nothing(
    secure: Secure, client: str, name: str
) -> None:
    require(client)
    wrong = secure.login(name)._replace(password="wrong")
    if name == OAUTH:
        wrong = wrong._replace(password=secure.issuer.issuer.token("alice", aud="another"))
    topic = new_topic()
    with pytest.raises(LoginError):
        CLIENTS[client](secure.bootstrap, wrong, topic)


@pytest.mark.parametrize(
    ("secure", "name"),
    [*((ONE_BROKER, name) for name in NAMES), (THREE_BROKERS, "SCRAM-SHA-512")],
    indirect=["secure"],
)
def test_java_clients(secure: Secure, name: str, tools: ToolRunner, tmp_path: Path) -> None:
    login, url, topic = secure.login(name), f"{secure.issuer.url}/token", new_topic()
    text = java_properties(login, url)
    server = ("--bootstrap-server", secure.bootstrap)
    java_tool(
        tools, tmp_path, TOPICS, text, *server, "--create", "--topic", topic,
        "--command-config", "{config}",
    )  # fmt: skip
    java_tool(
        tools, tmp_path, PRODUCER, text, *server, "--topic", topic,
        "--command-config", "{config}", given="v\n",
    )  # fmt: skip
    read = java_tool(
        tools, tmp_path, CONSUMER, text, *server, "--topic", topic, "--from-beginning",
        "--max-messages", "1", "--command-config", "{config}",
    )  # fmt: skip
    assert read.strip() == "v"


def test_kafka_configs_manages_users(secure: Secure, tools: ToolRunner, tmp_path: Path) -> None:
    text = java_properties(secure.login("SCRAM-SHA-512"), "")
    user = f"user-{next(_numbers)}"
    base = ("--bootstrap-server", secure.bootstrap, "--command-config", "{config}")
    entity = ("--entity-type", "users", "--entity-name", user)
    added = "SCRAM-SHA-256=[iterations=8192,password=one],SCRAM-SHA-512=[password=one]"
    java_tool(tools, tmp_path, CONFIGS, text, *base, *entity, "--alter", "--add-config", added)
    login = Login("SCRAM-SHA-256", user, "one")
    assert CLIENTS["confluent"](secure.bootstrap, login, new_topic()) == b"v"
    with admin_of(secure) as admin:
        assert admin.list_users()[user] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}
    deleted = ("--delete-config", "SCRAM-SHA-256")
    java_tool(tools, tmp_path, CONFIGS, text, *base, *entity, "--alter", *deleted)
    with pytest.raises(LoginError):
        CLIENTS["confluent"](secure.bootstrap, login, new_topic())
    with pytest.raises(LoginError):
        CLIENTS["confluent"](secure.bootstrap, login._replace(password="?"), new_topic())


def test_kafka_delegation_tokens(secure: Secure, tools: ToolRunner, tmp_path: Path) -> None:
    text = java_properties(secure.login("SCRAM-SHA-256"), "")
    base = ("--bootstrap-server", secure.bootstrap, "--command-config", "{config}")
    made = java_tool(
        tools, tmp_path, TOKENS, text, *base, "--create", "--max-life-time-period", "-1",
        "--renewer-principal", "User:carol",
    )  # fmt: skip
    row = next(line.split() for line in made.splitlines() if "User:alice" in line)
    token_id, hmac = row[0], row[1]
    topic = new_topic()
    of_token = java_properties(Login("SCRAM-SHA-512", token_id, hmac), "", ' tokenauth="true"')
    server = ("--bootstrap-server", secure.bootstrap, "--topic", topic)
    java_tool(
        tools, tmp_path, TOPICS, of_token, *server, "--create", "--command-config", "{config}"
    )
    owned = ("--describe", "--owner-principal", "User:alice")
    shown = java_tool(tools, tmp_path, TOKENS, text, *base, *owned)
    assert token_id in shown
    assert "User:carol" in shown
    java_tool(tools, tmp_path, TOKENS, text, *base, "--renew", "--renew-time-period", "-1",
              "--hmac", hmac)  # fmt: skip
    java_tool(tools, tmp_path, TOKENS, text, *base, "--expire", "--expiry-time-period", "-1",
              "--hmac", hmac)  # fmt: skip
    assert token_id not in java_tool(tools, tmp_path, TOKENS, text, *base, *owned)


@pytest.mark.parametrize("name", NAMES)
def test_the_blocking_protocol_client(secure: Secure, name: str) -> None:
    login = secure.login(name)
    given = {
        "bootstrap.servers": secure.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": login.mechanism,
    }
    if name == OAUTH:
        given |= {
            "sasl.oauthbearer.token.endpoint.url": f"{secure.issuer.url}/token",
            "sasl.oauthbearer.client.id": login.user,
            "sasl.oauthbearer.client.secret": "any",
        }
    else:
        given |= {"sasl.username": login.user, "sasl.password": login.password}
    with ClusterClient(connection_settings(ClientProperties(given))) as client:
        client.fetch_metadata()
        assert client.broker_ids


def test_the_admin_manages_users(secure: Secure) -> None:
    user = f"user-{next(_numbers)}"
    with admin_of(secure) as admin:
        admin.create_user(user, "one", mechanisms=["SCRAM-SHA-256"], iterations=5000)
        assert admin.list_users()[user] == {"SCRAM-SHA-256": 5000}
        with pytest.raises(millstream.BrokerError, match="exists"):
            admin.create_user(user, "two")
        admin.alter_user(user, "two")
        assert admin.list_users()[user] == {"SCRAM-SHA-256": 5000}
        new = Login("SCRAM-SHA-256", user, "two")
        assert CLIENTS["confluent"](secure.bootstrap, new, new_topic()) == b"v"
        admin.delete_user(user)
        assert user not in admin.list_users()
        with pytest.raises(millstream.BrokerError, match="does not exist"):
            admin.delete_user(user)
