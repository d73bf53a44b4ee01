"""Real clients log in by each mechanism, on one broker and on three that log in to each other."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import millstream
from harness.process.brokers import ONE, THREE
from harness.token_issuer import IssuerServer, TokenIssuer, issuer_server
from harness.tool.java import CACHE
from kafka_tools.runner import ToolRunner
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.cluster_client import ClusterClient
from millstream.protocol.connection_setting import connection_settings
from sasl_clients.client import CLIENTS, LoginError, ToolError, java_tool
from sasl_clients.login import LOGINS, OAUTH, Login, Secure, secure_brokers, token_url

ACLS = "kafka-acls"
CONFIGS = "kafka-configs"
TOKENS = "kafka-delegation-tokens"
TOPICS = "kafka-topics"
PRODUCER = "kafka-console-producer"
CONSUMER = "kafka-console-consumer"
#: An option of SCRAM's login module: the user is a delegation token.
TOKEN_LOGIN = ' tokenauth="true"'
#: Claims of a token that brokers reject.
OTHER_AUDIENCE = {"aud": "another"}
NAMES = [*LOGINS, OAUTH]
_numbers = itertools.count()
#: The numbers of brokers, for the fixture `secure`.
ONE_BROKER, THREE_BROKERS = 1, 3

pytestmark = pytest.mark.xdist_group("sasl_clients")


@pytest.fixture(scope="module")
def issuer() -> Iterator[IssuerServer]:
    with issuer_server(TokenIssuer()) as server:
        yield server


@pytest.fixture(scope="module")
def tools(issuer: IssuerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    urls = ",".join(token_url(issuer, claims) for claims in ({}, OTHER_AUDIENCE))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}"
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
    login = secure.login("SCRAM-SHA-512")
    return millstream.Admin(
        secure.bootstrap,
        security_protocol=login.protocol,
        sasl_mechanism=login.mechanism,
        sasl_username=login.user,
        sasl_password=login.password,
        ssl_cafile=login.ca or None,
    )


def require(client: str) -> None:
    states = json.loads((CACHE / "tools.json").read_text())
    if client in states and not states[client]["available"]:
        pytest.skip(f"{client} is not available: {states[client]['reason']}")


def on_both(client: str, name: str, *, in_soak: bool) -> list[Any]:
    """Return parameters for one broker and for three, which only the soak runs if `in_soak`."""
    marks = [pytest.mark.soak] if in_soak else []
    return [(ONE_BROKER, client, name), pytest.param(THREE_BROKERS, client, name, marks=marks)]


def rejected_on_both(client: str, name: str) -> list[Any]:
    """Return the parameters of logins that fail. kafka-python retries them for 30 s, so only the
    soak runs most of its cases."""
    if client == "kafka-python":
        is_first = name == "SCRAM-SHA-256"
        first = pytest.param(ONE_BROKER, client, name, marks=[] if is_first else [pytest.mark.soak])
        return [first, pytest.param(THREE_BROKERS, client, name, marks=[pytest.mark.soak])]
    return on_both(client, name, in_soak=name != "SCRAM-SHA-256")


@pytest.mark.parametrize(
    ("secure", "client", "name"),
    [
        case
        for client in CLIENTS
        for name in NAMES
        for case in on_both(client, name, in_soak=name not in NAMES[-2:])
    ],
    indirect=["secure"],
)
def test_a_client_writes_and_reads(secure: Secure, client: str, name: str) -> None:
    require(client)
    assert CLIENTS[client](secure.bootstrap, secure.login(name), new_topic()) == b"v"


@pytest.mark.parametrize(
    ("secure", "client", "name"),
    [
        case
        for client in CLIENTS
        for name in ("PLAIN", "SCRAM-SHA-256", OAUTH)
        for case in rejected_on_both(client, name)
    ],
    indirect=["secure"],
)
def test_a_client_with_a_wrong_password_gets_nothing(
    secure: Secure, client: str, name: str
) -> None:
    require(client)
    wrong = secure.login(name)._replace(password="wrong")
    if name == OAUTH:
        wrong = secure.login(name, aud="another")
    with pytest.raises(LoginError):
        CLIENTS[client](secure.bootstrap, wrong, new_topic())


@pytest.mark.parametrize(
    ("secure", "client"),
    [
        pytest.param(count, client, marks=[] if client == "aiokafka" else [pytest.mark.soak])
        for count in (ONE_BROKER, THREE_BROKERS)
        for client in CLIENTS
    ],
    indirect=["secure"],
)
@pytest.mark.parametrize("token", ["expired", "early", "revoked"])
def test_a_client_with_an_invalid_token_gets_nothing(
    secure: Secure, client: str, token: str
) -> None:
    """A token counts as revoked if its key is no longer in the key set."""
    require(client)
    now = int(time.time())
    if token == "revoked":
        login = secure.login(OAUTH)
        stranger = TokenIssuer()
        stranger.rotate()
        login = login._replace(password=stranger.token("alice"))
        if client == "kcat":
            pytest.skip("kcat takes tokens from the issuer only")
    elif token == "expired":
        login = secure.login(OAUTH, iat=now - 900, exp=now - 600)
    else:
        login = secure.login(OAUTH, nbf=now + 600)
    with pytest.raises(LoginError):
        CLIENTS[client](secure.bootstrap, login, new_topic())


@pytest.mark.parametrize(
    ("secure", "name"),
    [
        *((ONE_BROKER, name) for name in NAMES),
        (THREE_BROKERS, "SCRAM-SHA-512"),
        *(
            pytest.param(THREE_BROKERS, name, marks=pytest.mark.soak)
            for name in NAMES
            if name != "SCRAM-SHA-512"
        ),
    ],
    indirect=["secure"],
)
def test_java_clients(secure: Secure, name: str, tools: ToolRunner, tmp_path: Path) -> None:
    login, topic = secure.login(name), new_topic()
    server = ("--bootstrap-server", secure.bootstrap, "--command-config", "{config}")
    java_tool(tools, tmp_path, TOPICS, login, *server, "--create", "--topic", topic)
    java_tool(tools, tmp_path, PRODUCER, login, *server, "--topic", topic, given="v\n")
    read = ("--topic", topic, "--from-beginning", "--max-messages", "1")
    assert java_tool(tools, tmp_path, CONSUMER, login, *server, *read).strip() == "v"


@pytest.mark.parametrize(
    ("secure", "name"),
    [
        (ONE_BROKER, "SCRAM-SHA-512"),
        (THREE_BROKERS, OAUTH),
        pytest.param(ONE_BROKER, "PLAIN", marks=pytest.mark.soak),
        pytest.param(ONE_BROKER, OAUTH, marks=pytest.mark.soak),
        pytest.param(THREE_BROKERS, "PLAIN", marks=pytest.mark.soak),
        pytest.param(THREE_BROKERS, "SCRAM-SHA-512", marks=pytest.mark.soak),
    ],
    indirect=["secure"],
)
def test_a_java_client_with_a_wrong_password_says_so(
    secure: Secure, name: str, tools: ToolRunner, tmp_path: Path
) -> None:
    login = secure.login(name, **OTHER_AUDIENCE)._replace(password="wrong")
    server = ("--bootstrap-server", secure.bootstrap, "--command-config", "{config}")
    with pytest.raises(ToolError) as failed:
        java_tool(tools, tmp_path, TOPICS, login, *server, "--list")
    output = str(failed.value)
    assert "SaslAuthenticationException" in output
    assert f"due to invalid credentials with SASL mechanism {name}" in output


def test_kafka_configs_manages_users(secure: Secure, tools: ToolRunner, tmp_path: Path) -> None:
    login = secure.login("SCRAM-SHA-512")
    user = f"user-{next(_numbers)}"
    base = ("--bootstrap-server", secure.bootstrap, "--command-config", "{config}")
    entity = ("--entity-type", "users", "--entity-name", user)
    added = "SCRAM-SHA-256=[iterations=8192,password=one],SCRAM-SHA-512=[password=one]"
    java_tool(tools, tmp_path, CONFIGS, login, *base, *entity, "--alter", "--add-config", added)
    new = Login("SCRAM-SHA-256", user, "one", secure.ca)
    assert CLIENTS["confluent"](secure.bootstrap, new, new_topic()) == b"v"
    with admin_of(secure) as admin:
        assert admin.list_users()[user] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}
    deleted = ("--delete-config", "SCRAM-SHA-256")
    java_tool(tools, tmp_path, CONFIGS, login, *base, *entity, "--alter", *deleted)
    with pytest.raises(LoginError):
        CLIENTS["confluent"](secure.bootstrap, new, new_topic())


def test_kafka_acls(secure: Secure, tools: ToolRunner, tmp_path: Path) -> None:
    alice, topic = secure.login("PLAIN-of-scram"), new_topic()
    server = ("--bootstrap-server", secure.bootstrap, "--command-config", "{config}")
    rule = ("--deny-principal", "User:bob", "--operation", "All", "--topic", topic)
    bob = secure.login("SCRAM-SHA-512")
    java_tool(tools, tmp_path, ACLS, alice, *server, "--add", *rule)
    with pytest.raises(millstream.MillstreamError, match=r"(?i)authoriz"):
        CLIENTS["millstream"](secure.bootstrap, bob, topic)
    java_tool(tools, tmp_path, ACLS, alice, *server, "--remove", "--force", *rule)
    assert CLIENTS["millstream"](secure.bootstrap, bob, topic) == b"v"


def test_kafka_delegation_tokens(secure: Secure, tools: ToolRunner, tmp_path: Path) -> None:
    login = secure.login("SCRAM-SHA-256")
    base = ("--bootstrap-server", secure.bootstrap, "--command-config", "{config}")
    made = java_tool(
        tools, tmp_path, TOKENS, login, *base, "--create", "--max-life-time-period", "-1",
        "--renewer-principal", "User:carol",
    )  # fmt: skip
    row = next(line.split() for line in made.splitlines() if "User:alice" in line)
    token_id, hmac = row[0], row[1]
    topic = new_topic()
    of_token = Login("SCRAM-SHA-512", token_id, hmac, secure.ca)
    create = (*base, "--topic", topic, "--create")
    java_tool(tools, tmp_path, TOPICS, of_token, *create, extension=TOKEN_LOGIN)
    owned = ("--describe", "--owner-principal", "User:alice")
    shown = java_tool(tools, tmp_path, TOKENS, login, *base, *owned)
    assert token_id in shown
    assert "User:carol" in shown
    java_tool(tools, tmp_path, TOKENS, login, *base, "--renew", "--renew-time-period", "-1",
              "--hmac", hmac)  # fmt: skip
    java_tool(tools, tmp_path, TOKENS, login, *base, "--expire", "--expiry-time-period", "-1",
              "--hmac", hmac)  # fmt: skip
    assert token_id not in java_tool(tools, tmp_path, TOKENS, login, *base, *owned)
    with pytest.raises(ToolError) as failed:
        java_tool(tools, tmp_path, TOPICS, of_token, *base, "--list", extension=TOKEN_LOGIN)
    assert "SaslAuthenticationException" in str(failed.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_blocking_protocol_client(secure: Secure, name: str) -> None:
    login = secure.login(name)
    given = {
        "bootstrap.servers": secure.bootstrap,
        "security.protocol": login.protocol,
        "sasl.mechanism": login.mechanism,
    }
    if login.ca:
        given["ssl.ca.location"] = login.ca
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
        new = Login("SCRAM-SHA-256", user, "two", secure.ca)
        assert CLIENTS["confluent"](secure.bootstrap, new, new_topic()) == b"v"
        admin.delete_user(user)
        assert user not in admin.list_users()
        with pytest.raises(millstream.BrokerError, match="does not exist"):
            admin.delete_user(user)
