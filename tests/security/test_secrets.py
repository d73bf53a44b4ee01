"""No secret appears in logs, metrics, descriptions, errors, the audit trail or the process list.

A broker process gets marked secrets in its settings, and clients send marked secrets in requests.
Then everything that the broker shows is searched for the marks.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import HOST, BrokerProcess, free_port, wait_until
from harness.raw.raw_client import Closed, RawClient, fetch_request, records_of
from millstream.broker.config.broker_config import BrokerConfig, ConfigError, definitions
from millstream.broker.config.config_source import check_flags
from millstream.security.audit_event import AUDIT_TOPIC
from millstream.security.local_authority import LocalAuthority
from millstream.wire.messages.alter_configs import AlterConfigsRequest
from millstream.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from millstream.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest

#: In every secret, so that a secret which a test forgets is found too.
MARK = "M4RKED"
TOKEN = f"{MARK}-http-token"
SECRETS = {
    "delegation.token.secret.key": f"{MARK}-delegation-key",
    "http.bearer.token": TOKEN,
    "ssl.key.password": f"{MARK}-key-password",
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' username="broker" password="{MARK}-broker-password" user_alice="{MARK}-alice-password";',
}
BROKER = 4
SENSITIVE = [name for name, definition in definitions.items() if definition.is_sensitive]


class ObservedBroker(BrokerProcess):
    """A broker with secrets, which logs everything."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"audit.enable": "true", "audit.file": folder / "audit.json"})
        authority = LocalAuthority.open_or_create(folder / "security")
        authority.issue("broker", hosts=(HOST,), days=2)
        pem = (folder / "security" / "broker.pem").read_text()
        key_start, key_end = pem.index("-----BEGIN"), pem.index("-----END")
        first_is_key = "PRIVATE KEY" in pem[key_start : pem.index("\n")]
        assert first_is_key, "the private key comes first"
        end = pem.index("\n", key_end) + 1
        key, chain = pem[:end], pem[end:]
        #: A line of the private key: PEM has 64 letters on each.
        self.key_line = key.splitlines()[1]
        self.ports = {name: free_port() for name in ("PLAINTEXT", "SASL_PLAINTEXT", "SSL")}
        self.port = self.ports["PLAINTEXT"]
        self.listeners = [f"{name}://{HOST}:{port}" for name, port in self.ports.items()]
        self.http_token = TOKEN
        settings = {
            **SECRETS,
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": chain,
            "ssl.truststore.certificates": (folder / "security" / "ca.pem").read_text(),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        }
        self.config_file = folder / "broker.toml"
        lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items()]
        self.config_file.write_text("".join(lines))

    def command(self) -> Sequence[str]:
        return [*super().command(), "--log-level", "debug"]

    def client(self, listener: str = "PLAINTEXT") -> RawClient:
        return RawClient(HOST, self.ports[listener])

    def log(self) -> str:
        return Path(self.log_path).read_text()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedBroker]:
    with ObservedBroker(tmp_path_factory.mktemp("secrets")) as process:
        provoke(process)
        yield process


def log_in(broker: ObservedBroker, mechanism: str, data: bytes) -> Any:
    with broker.client("SASL_PLAINTEXT") as client:
        client.call(SaslHandshakeRequest(mechanism=mechanism), 1)
        try:
            return client.call(SaslAuthenticateRequest(auth_bytes=data), 2)
        except Closed:
            return None


def provoke(broker: ObservedBroker) -> None:
    """Send secrets in requests that succeed, that are rejected, and that are malformed."""
    log_in(broker, "PLAIN", f"\0alice\0{MARK}-alice-password".encode())
    log_in(broker, "PLAIN", f"\0alice\0{MARK}-guess".encode())
    log_in(broker, "PLAIN", f"{MARK}-malformed".encode())
    log_in(broker, "SCRAM-SHA-512", f"n,,n=alice,r={MARK}-nonce,{MARK}".encode())
    log_in(broker, "OAUTHBEARER", f"n,,\x01auth=Bearer {MARK}-token\x01\x01".encode())
    with broker.client() as client:
        set_secrets(client)
        create_user(client, f"{MARK}-salted-password-of-64-bytes".encode().ljust(64, b"!"), 8192)
        create_user(client, f"{MARK}-rejected".encode(), 1)
        response = client.call(CreateDelegationTokenRequest(max_lifetime_ms=-1))
        assert MARK.encode() not in response.hmac
        client.call(RenewDelegationTokenRequest(hmac=f"{MARK}-hmac".encode(), renew_period_ms=1))
    with broker.client() as client:
        client.send_raw(b"\x00\x00\x00\x20" + MARK.encode() * 5 + b"\xff\xff")
        assert client.is_closed_within(10)


def set_secrets(client: RawClient) -> None:
    """Set secrets at run time: valid ones, and ones that are rejected."""
    row = IncrementalAlterConfigsRequest.Resource
    for name in SENSITIVE:
        for resource in ("1", ""):
            config = row.Config(name=name, config_operation=0, value=f"{MARK}-run-time")
            wanted = row(resource_type=BROKER, resource_name=resource, configs=[config])
            response = client.call(IncrementalAlterConfigsRequest(resources=[wanted]))
            assert MARK not in repr(response)
            old = AlterConfigsRequest.Resource
            settings = [old.Config(name=name, value=f"{MARK}-all")]
            whole = old(resource_type=BROKER, resource_name=resource, configs=settings)
            response = client.call(AlterConfigsRequest(resources=[whole], validate_only=True))
            assert MARK not in repr(response)


def create_user(client: RawClient, salted_password: bytes, iterations: int) -> None:
    upsertion = AlterUserScramCredentialsRequest.Upsertion(
        name="bob",
        mechanism=2,
        iterations=iterations,
        salt=b"salt",
        salted_password=salted_password,
    )
    response = client.call(AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    assert MARK not in repr(response)


def check(text: str | bytes, broker: ObservedBroker) -> None:
    """Fail if a text has a secret, plainly or in base64 or hex."""
    found = text.decode(errors="replace") if isinstance(text, bytes) else text
    assert found, "there is nothing to search"
    for mark in (MARK, broker.key_line):
        encoded = [mark, mark.encode().hex(), base64.b64encode(mark.encode()).decode()[:-4]]
        for each in encoded:
            position = found.find(each)
            assert position < 0, f"a secret: {found[max(position - 200, 0) : position + 50]}"


def test_the_log_has_no_secret(broker: ObservedBroker) -> None:
    text = broker.log()
    assert "rejected a request" in text
    assert b"--log-level\0debug" in Path(f"/proc/{broker.pid}/cmdline").read_bytes()
    check(text, broker)


def test_the_metrics_have_no_secret(broker: ObservedBroker) -> None:
    request = urllib.request.Request(
        f"{broker.http_url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        check(response.read(), broker)
    wrong = urllib.request.Request(
        f"{broker.http_url}/metrics", headers={"Authorization": f"Bearer {MARK}-wrong"}
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(wrong, timeout=10)
    with error.value:
        check(error.value.read() + str(error.value.headers).encode(), broker)


def test_descriptions_have_no_secret(broker: ObservedBroker) -> None:
    with broker.client() as client:
        for name in ("1", ""):
            resource = DescribeConfigsRequest.Resource(
                resource_type=BROKER, resource_name=name, configuration_keys=None
            )
            request = DescribeConfigsRequest(
                resources=[resource], include_synonyms=True, include_documentation=True
            )
            response = client.call(request)
            check(repr(response), broker)
            rows = {row.name: row for row in response.results[0].configs}
            for secret in SENSITIVE:
                if secret in rows:
                    assert rows[secret].is_sensitive
                    assert rows[secret].value is None
        users = client.call(DescribeUserScramCredentialsRequest(users=None))
        assert "bob" in repr(users)
        check(repr(users), broker)


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "millstream.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.stdout.decode() + done.stderr.decode()


def test_commands_show_no_secret(broker: ObservedBroker) -> None:
    servers = ("--bootstrap-server", f"{HOST}:{broker.port}")
    for form in ((), ("--json",)):
        shown = run("broker", "config", "describe", "-a", "--broker", "1", *form, *servers)
        assert "http.bearer.token" in shown
        check(shown, broker)
        checked = run("serve", "--check", "--config", str(broker.config_file), *form)
        assert "http.bearer.token" in checked
        check(checked, broker)


def test_the_process_list_has_no_secret(broker: ObservedBroker) -> None:
    check(Path(f"/proc/{broker.pid}/cmdline").read_bytes(), broker)


def test_the_audit_trail_has_no_secret(broker: ObservedBroker) -> None:
    def events() -> bytes:
        with broker.client() as client:
            response = client.call(fetch_request([(AUDIT_TOPIC, 0, 0)]), 12)
            records = records_of(response.responses[0].partitions[0].records)
            return b"\n".join(record.value or b"" for record in records)

    wait_until(lambda: b"AlterUserScramCredentials" in events(), "the events")
    assert b"authentication" in events()
    check(events(), broker)
    check((broker.config_file or Path()).with_name("audit.json").read_bytes(), broker)


# Secrets on the command line


@pytest.mark.parametrize("name", SENSITIVE)
def test_the_command_line_takes_no_secret(name: str) -> None:
    shown = run("serve", "--check", "--set", f"{name}={MARK}-argument")
    assert f"{name} is a secret" in shown
    assert "MILLSTREAM_" + name.upper().replace(".", "_") in shown
    assert MARK not in shown


def test_secrets_of_one_listener_are_secrets_too() -> None:
    with pytest.raises(ConfigError, match="is a secret"):
        check_flags(["listener.name.external.ssl.key.password"], SENSITIVE)
    check_flags(["listener.name.external.ssl.client.auth", "node.id"], SENSITIVE)


def test_a_running_broker_gets_no_secret_by_a_command(broker: ObservedBroker) -> None:
    servers = ("--bootstrap-server", f"{HOST}:{broker.port}")
    shown = run("broker", "config", "set", f"ssl.key.password={MARK}-argument", *servers)
    assert "is a secret" in shown
    assert MARK not in shown


def test_the_text_of_the_settings_has_no_secret() -> None:
    config = BrokerConfig.load(environment={"MILLSTREAM_HTTP_BEARER_TOKEN": f"{MARK}-token"})
    assert config.network.http_bearer_token == f"{MARK}-token"
    assert MARK not in repr(config)


def test_an_error_about_a_secret_does_not_quote_it() -> None:
    with pytest.raises(ConfigError) as error:
        BrokerConfig.load(environment={"MILLSTREAM_SASL_JAAS_CONFIG": f"{MARK} nonsense"})
    assert MARK not in str(error.value)
