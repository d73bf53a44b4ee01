"""The source and the sink on a broker with TLS, users and ACLs, and what Spark shows of secrets.

`test_kafka_security.py` does the same on Apache Kafka.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from harness.token_issuer import AUDIENCE, ISSUER, TokenIssuer, issuer_server
from millstream import Acl, Admin, Producer
from millstream.cli.main import build
from millstream.cli.support.profile import FILE_VARIABLE, Profile, Profiles
from millstream.model.error import BrokerError
from millstream.spark.sink.sink_options import COMMIT_TOPIC_DEFAULT
from millstream.spark.source.batch_reader import BatchReader
from millstream.spark.source.source_schema import source_schema
from millstream.testing.secure_broker import SecureBroker

INPUT, OUTPUT, SECRET = "secure-input", "secure-output", "secret"
COUNT = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """Return a broker where alice may read INPUT, write OUTPUT and describe SECRET."""
    with SecureBroker(tmp_path_factory.mktemp("secure")) as secure:
        servers = secure.bootstrap_servers
        with Admin(servers, **secure.options()) as admin:
            for topic in (INPUT, OUTPUT, SECRET):
                admin.create_topic(topic)
            rights = [
                ("read", "topic", INPUT, "literal"),
                ("write", "topic", OUTPUT, "literal"),
                ("describe", "topic", SECRET, "literal"),
                # The sink writes in transactions, and decides about them in a topic of its own.
                ("all", "transactional_id", "spark-", "prefixed"),
                ("read", "group", "spark-commit-", "prefixed"),
                ("all", "topic", COMMIT_TOPIC_DEFAULT, "literal"),
            ]
            acls = [
                Acl(
                    principal="User:alice",
                    operation=operation,
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=pattern,
                )
                for operation, kind, name, pattern in rights
            ]
            assert not any(admin.create_acls(acls).values())
        with Producer(servers, **secure.options()) as producer:
            for number in range(COUNT):
                producer.send(INPUT, f"value-{number}")
            producer.send(SECRET, "nobody else reads this")
        yield secure


TOKEN_S = 8


def test_tokens_are_renewed_while_queries_run(spark: SparkSession, tmp_path: Path) -> None:
    """Executor processes live longer than a token, and log in for each task."""
    with (
        issuer_server(TokenIssuer(lifetime_s=TOKEN_S)) as issuer,
        SecureBroker(tmp_path, _oauth_settings(issuer.url)) as secure,
    ):
        with Admin(secure.bootstrap_servers, **secure.options()) as admin:
            admin.create_topic(INPUT)
        with Producer(secure.bootstrap_servers, **secure.options()) as producer:
            producer.send(INPUT, "value")
        options = {
            "kafka.bootstrap.servers": secure.bootstrap_servers,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": str(secure.ca_file),
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
            # The super user of the broker: rights are the matter of another test.
            "kafka.sasl.oauthbearer.client.id": "admin",
            "kafka.sasl.oauthbearer.client.secret": "token-secret",
        }
        frame = spark.read.format("millstream").options(**options, subscribe=INPUT).load()
        assert frame.count() == 1
        first_expires_at = time.monotonic() + TOKEN_S
        while time.monotonic() < first_expires_at:
            assert frame.count() == 1
        assert frame.count() == 1
        shown = frame._jdf.queryExecution().toString() + _shown(spark)
    assert "token-secret" not in shown


def _oauth_settings(issuer: str) -> dict[str, object]:
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer}/jwks",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": 0,
    }


def _options(broker: SecureBroker, user: str) -> dict[str, str]:
    found = {f"kafka.{name}": text for name, text in broker.properties(user).items()}
    return {**found, "kafka.default.api.timeout.ms": "60000"}


def _shown(spark: SparkSession) -> str:
    """Return all that Spark's page about queries shows, and the session's settings."""
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    texts = [
        str(executions.apply(number).physicalPlanDescription())
        + str(executions.apply(number).details())
        for number in range(executions.size())
    ]
    return "\n".join([*texts, str(spark.sparkContext.getConf().getAll())])


def test_rights_are_enough_and_secrets_are_not_shown(
    spark: SparkSession, broker: SecureBroker
) -> None:
    options = _options(broker, "alice")
    frame = spark.read.format("millstream").options(**options, subscribe=INPUT).load()
    plan = frame._jdf.queryExecution().toString()
    assert frame.count() == COUNT
    target = frame.selectExpr("value", f"'{OUTPUT}' as topic").write.format("millstream")
    target.options(**options).mode("append").save()
    admin = _options(broker, "admin")
    copy = spark.read.format("millstream").options(**admin, subscribe=OUTPUT).load()
    assert copy.count() == COUNT
    shown = plan + _shown(spark)
    for password in broker.passwords.values():
        assert password not in shown


def test_a_query_without_rights_says_so(spark: SparkSession, broker: SecureBroker) -> None:
    options = _options(broker, "alice")
    frame = spark.read.format("millstream").options(**options, subscribe=SECRET).load()
    with pytest.raises(Exception, match=r"TOPIC_AUTHORIZATION_FAILED: .*may not read") as caught:
        frame.count()
    assert broker.passwords["alice"] not in str(caught.value)


@pytest.mark.parametrize(
    "choice",
    [{"subscribe": f"{INPUT},{SECRET}"}, {"subscribePattern": f"{INPUT}|{SECRET}"}],
    ids=["names", "pattern"],
)
def test_the_plan_of_a_query_checks_rights(broker: SecureBroker, choice: dict[str, str]) -> None:
    """The query fails before any task starts."""
    options = _options(broker, "alice") | choice
    reader = BatchReader(options, source_schema(options))
    with pytest.raises(BrokerError, match=f"TOPIC_AUTHORIZATION_FAILED: .* topic {SECRET}"):
        reader.partitions()
    options = _options(broker, "admin") | choice
    assert BatchReader(options, source_schema(options)).partitions()


@pytest.mark.usefixtures("spark")
def test_jobs_log_in_by_a_profile(
    broker: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """alice archives INPUT and replays it to OUTPUT. No option of the commands has her password."""
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv(FILE_VARIABLE, str(profiles))
    properties = broker.properties("alice")
    servers = properties.pop("bootstrap.servers")
    Profiles({"alice": Profile(servers, properties=properties)}).save(profiles)
    environment = {"MILLSTREAM_PROFILE": "alice", "COLUMNS": "120", "NO_COLOR": "1"}
    for command in (
        ("archive", INPUT, "--to", tmp_path / "archive", "--no-follow"),
        ("replay", INPUT, "--to", OUTPUT, "--state", tmp_path / "state"),
    ):
        words = ["job", *map(str, command), "--json"]
        outcome = CliRunner().invoke(build(["job"]), words, env=environment)
        assert outcome.exit_code == 0, outcome.output
        assert json.loads(outcome.stdout)["records"] == COUNT, outcome.stdout
        assert broker.passwords["alice"] not in outcome.output
