"""Logins on a listener with SASL: what a client may do before, and how a login fails or ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.server_set import HOST, ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import Closed, RawClient, encode_frame, values_batch
from harness.raw.raw_login import authenticate, handshake, log_in, log_in_by_token
from harness.token_issuer import AUDIENCE, ISSUER, TokenIssuer
from millstream.broker.login.authentication import THREADS_MAX, Authentication
from millstream.broker.login.client_login import VERSION_REQUESTS_MAX
from millstream.model.error import ErrorCode
from millstream.net.rejection import Rejection
from millstream.protocol.connection_setting import Login
from millstream.protocol.sasl import Scram
from millstream.security.audit_event import AuditEvent
from millstream.security.sasl.exchange import AuthenticationError, Work
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from millstream.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from millstream.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest

JAAS = 'org.example.PlainLoginModule required user_carol="of-carol";'
TOKENS = TokenIssuer()


class Secure:
    """One broker with a listener for SASL and one without."""

    def __init__(self, brokers: ServerSet) -> None:
        self.brokers = brokers
        #: What the broker has recorded.
        self.events: list[AuditEvent] = []
        brokers.services(1).audit = self

    def record(self, event: AuditEvent, /) -> None:
        self.events.append(event)

    @property
    def authentication(self) -> Authentication:
        found = self.brokers.services(1).authentication
        assert found is not None
        return found

    def client(self) -> RawClient:
        return RawClient(HOST, self.brokers.servers[1].ports["SECURE"])

    def plain_client(self) -> RawClient:
        return self.brokers.client(1)


@contextmanager
def secure_broker(folder: Path, **settings: str) -> Iterator[Secure]:
    users, keys = folder / "users", folder / "keys.json"
    users.write_text("alice:pencil\nbob:pen\n")
    keys.write_bytes(TOKENS.key_set)
    with ServerSet(
        folder,
        count=1,
        **{
            "listeners": f"PLAINTEXT://{HOST}:0,SECURE://{HOST}:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.secure.plain.sasl.jaas.config": JAAS,
            "bootstrap.users.file": str(users),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "connection.failed.authentication.delay.ms": "10",
            "max.failed.authentications.per.ip": "1000000",
            "delegation.token.secret.key": "key-of-the-brokers",
            **settings,
        },
    ) as brokers:
        yield Secure(brokers)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure_broker(tmp_path_factory.mktemp("secure")) as found:
        yield found


def is_served(client: RawClient) -> bool:
    try:
        return bool(client.call(MetadataRequest(topics=[]), 12).brokers)
    except (Closed, OSError):
        return False


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [
        ("alice", "pencil", "SCRAM-SHA-256"),
        ("alice", "pencil", "SCRAM-SHA-512"),
        ("alice", "pencil", "PLAIN"),
        ("carol", "of-carol", "PLAIN"),
    ],
)
def test_users_log_in(secure: Secure, user: str, password: str, mechanism: str) -> None:
    before = secure.authentication.counters.succeeded["SECURE"]
    with secure.client() as client:
        response = log_in(client, user, password, mechanism)
        assert (response.error_code, response.session_lifetime_ms) == (0, 0)
        assert is_served(client)
        assert authenticate(client, b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert secure.authentication.counters.succeeded["SECURE"] == before + 1
    last = secure.events[-1]
    assert (last.action, last.principal, last.outcome) == (mechanism, f"User:{user}", "ok")


def test_wrong_passwords_and_unknown_users_get_the_same_response(secure: Secure) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        responses = []
        for user, password in (("alice", "guess-1"), ("nobody", "guess-1")):
            with secure.client() as client:
                response = log_in(client, user, password, mechanism)
                assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert client.is_closed_within(10)
            responses.append((response.error_message, response.auth_bytes))
        assert responses[0] == responses[1]
        assert mechanism in str(responses[0])
    last = secure.events[-1]
    assert (last.action, last.principal, last.outcome) == (
        "PLAIN", "", "SASL_AUTHENTICATION_FAILED",
    )  # fmt: skip
    assert not any("guess-1" in event.detail for event in secure.events)


def test_only_the_login_is_served_before_the_login(secure: Secure) -> None:
    with secure.client() as client:
        listed = {api.api_key for api in client.call(ApiVersionsRequest(), 0).api_keys}
        assert {0, 1, 3, 17, 36} <= listed
        assert not is_served(client)
        assert client.is_closed_within(10)
    counts = secure.brokers.servers[1]._gate.rejections.counts
    before = counts[Rejection.AUTHENTICATION]
    with secure.client() as client:
        handshake(client)
        client.send(ProduceRequest(), 3, has_response=False)
        assert client.is_closed_within(10)
    wait_until(lambda: counts[Rejection.AUTHENTICATION] == before + 1, "the rejection")


def test_a_client_that_asks_for_versions_again_and_again_is_disconnected(secure: Secure) -> None:
    with secure.client() as client:
        client.send_together([ApiVersionsRequest()] * (VERSION_REQUESTS_MAX + 1), 0)
        for _ in range(VERSION_REQUESTS_MAX):
            client.receive()
        with pytest.raises((Closed, OSError)):
            client.receive()
    with secure.client() as client:
        for _ in range(VERSION_REQUESTS_MAX):
            client.call(ApiVersionsRequest(), 0)
        assert log_in(client, "alice", "pencil").error_code == 0
        for _ in range(VERSION_REQUESTS_MAX * 2):
            client.call(ApiVersionsRequest(), 0)
        assert is_served(client)


def test_requests_behind_an_unfinished_login_are_not_served(secure: Secure) -> None:
    with secure.client() as client:
        handshake(client, "PLAIN")
        frames = [
            encode_frame(request, version, number)
            for number, (request, version) in enumerate(
                [(_message(b"\0alice\0wrong"), 2), (MetadataRequest(topics=[]), 12)]
            )
        ]
        client.send_raw(b"".join(frames))
        assert client.is_closed_within(10)


def _message(data: bytes) -> Any:
    from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest

    return SaslAuthenticateRequest(auth_bytes=data)


@pytest.mark.parametrize(
    "act",
    [
        lambda client: authenticate(client, b"\0alice\0pencil"),
        lambda client: (handshake(client), handshake(client)),
    ],
)
def test_requests_out_of_order_end_the_connection(
    secure: Secure, act: Callable[[RawClient], Any]
) -> None:
    with secure.client() as client, pytest.raises((Closed, OSError)):
        act(client)


def test_an_unknown_mechanism_gets_the_list(secure: Secure) -> None:
    with secure.client() as client:
        response = handshake(client, "GSSAPI")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "SCRAM-SHA-512" in response.mechanisms
        assert client.is_closed_within(10)


def test_a_listener_without_sasl_has_no_login(secure: Secure) -> None:
    with secure.plain_client() as client:
        assert handshake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert authenticate(client, b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert is_served(client)


def test_large_requests_before_the_login_end_the_connection(secure: Secure) -> None:
    with secure.client() as client:
        client.send_raw((524_289).to_bytes(4, "big"))
        assert client.is_closed_within(10)
    with secure.client() as client:
        assert log_in(client, "alice", "pencil").error_code == 0
        client.send_raw((524_289).to_bytes(4, "big"))
        assert not client.is_closed_within(0.3)


def test_clients_without_a_login_do_not_use_up_the_memory_for_requests(tmp_path: Path) -> None:
    """Each of them sends the beginning of the longest request."""
    mebibyte = str(2**20)
    settings = {"socket.request.max.bytes": mebibyte, "queued.max.request.bytes": mebibyte}
    with secure_broker(tmp_path, **settings) as secure, secure.client() as alice:
        assert log_in(alice, "alice", "pencil").error_code == 0
        topic_id = alice.create_topic("t")
        assert topic_id
        strangers = [secure.client() for _ in range(8)]
        try:
            for client in strangers:
                client.send_raw((524_288).to_bytes(4, "big") + b"\0" * 4)
            rejections = secure.brokers.servers[1]._gate.rejections.counts
            wait_until(lambda: rejections[Rejection.AUTHENTICATION] == 7, "all but one to end")
            # It is longer than one read, so it needs memory.
            assert alice.produce("t", values_batch(b"x" * 900_000)).error_code == 0
        finally:
            for client in strangers:
                client.close()


@pytest.mark.parametrize("data", [b"", b"\xff" * 50, b"\0" * 3, b"n,," * 1000])
def test_malformed_messages_fail(secure: Secure, data: bytes) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"):
        with secure.client() as client:
            handshake(client, mechanism)
            response = authenticate(client, data)
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert client.is_closed_within(10)


# Version 0 of SaslHandshake


def begin_raw(client: RawClient, mechanism: str) -> None:
    """Send version 0 of SaslHandshake, after which messages have no headers."""
    response = client.call(SaslHandshakeRequest(mechanism=mechanism), 0)
    assert response.error_code == 0
    assert mechanism in response.mechanisms


def send_token(client: RawClient, token: bytes) -> None:
    client.send_raw(len(token).to_bytes(4, "big") + token)


def log_in_raw(client: RawClient, user: str, password: str, mechanism: str) -> bytes:
    """Return the last message of the broker."""
    begin_raw(client, mechanism)
    if mechanism == "PLAIN":
        send_token(client, f"\0{user}\0{password}".encode())
        return client.receive_frame()
    scram = Scram(Login(mechanism, user, password), "client-nonce")
    send_token(client, scram.first())
    send_token(client, scram.final(client.receive_frame()))
    last = client.receive_frame()
    scram.check(last)
    return last


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_without_request_headers(secure: Secure, mechanism: str) -> None:
    with secure.client() as client:
        last = log_in_raw(client, "alice", "pencil", mechanism)
        # Clients wait for an empty message.
        assert (mechanism == "PLAIN") == (last == b"")
        assert is_served(client)
        assert authenticate(client, b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert log_in(client, "alice", "pencil", mechanism).error_code == 0
        assert is_served(client)
    assert (secure.events[-1].principal, secure.events[-1].outcome) == ("User:alice", "ok")


def test_a_request_that_arrives_with_the_last_message_of_a_login(secure: Secure) -> None:
    with secure.client() as client:
        begin_raw(client, "SCRAM-SHA-256")
        scram = Scram(Login("SCRAM-SHA-256", "alice", "pencil"), "client-nonce")
        send_token(client, scram.first())
        final = scram.final(client.receive_frame())
        request = encode_frame(MetadataRequest(topics=[]), 12, 7)
        client.send_raw(len(final).to_bytes(4, "big") + final + request)
        scram.check(client.receive_frame())
        assert client.receive_frame()[:4] == (7).to_bytes(4, "big")
        assert is_served(client)


def test_a_token_without_request_headers(secure: Secure) -> None:
    for token, is_valid in ((TOKENS.token("dora"), True), (TOKENS.token(aud="other"), False)):
        with secure.client() as client:
            begin_raw(client, "OAUTHBEARER")
            send_token(client, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
            if is_valid:
                assert client.receive_frame() == b""
                assert is_served(client)
            else:
                assert b"invalid_token" in client.receive_frame()
                send_token(client, b"\x01")
                with pytest.raises(Closed):
                    client.receive_frame()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_failed_login_without_request_headers_gets_no_response(
    secure: Secure, mechanism: str
) -> None:
    before = secure.authentication.counters.failed["SECURE"]
    with secure.client() as client, pytest.raises(Closed):
        log_in_raw(client, "alice", "wrong", mechanism)
    assert secure.authentication.counters.failed["SECURE"] == before + 1
    assert secure.events[-1].outcome == "SASL_AUTHENTICATION_FAILED"


def test_requests_are_not_served_during_a_login_without_headers(secure: Secure) -> None:
    """They are messages of the mechanism."""
    for request, version in ((MetadataRequest(topics=[]), 12), (ApiVersionsRequest(), 0)):
        with secure.client() as client:
            begin_raw(client, "SCRAM-SHA-256")
            client.send_raw(encode_frame(request, version, 7))
            with pytest.raises(Closed):
                client.receive_frame()
    with secure.client() as client:
        begin_raw(client, "PLAIN")
        client.send_raw(encode_frame(_message(b"\0alice\0pencil"), 2, 7))
        with pytest.raises(Closed):
            client.receive_frame()


def test_a_login_without_headers_is_limited(tmp_path: Path) -> None:
    settings = {"connection.authentication.timeout.ms": "500"}
    with secure_broker(tmp_path, **settings) as secure:
        with secure.client() as client:
            begin_raw(client, "PLAIN")
            client.send_raw((524_289).to_bytes(4, "big"))
            assert client.is_closed_within(10)
        with secure.client() as client:
            begin_raw(client, "PLAIN")
            assert client.is_closed_within(10)
        with secure.client() as client:
            begin_raw(client, "PLAIN")
            wrong = b"\0alice\0wrong"
            client.send_raw((len(wrong).to_bytes(4, "big") + wrong) * 3)
            assert client.is_closed_within(10)
        for _ in range(20):
            client = secure.client()
            begin_raw(client, "PLAIN")
            send_token(client, b"\0alice\0wrong")
            client.close()
        server = secure.brokers.servers[1]
        wait_until(lambda: secure.brokers.ask(lambda: server._gate.connections) == 0, "the end")
        wait_until(lambda: not secure.brokers.ask(lambda: server._requests), "no requests")


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_defect_in_a_login_without_headers_ends_the_connection(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    class Defect:
        def respond(self, message: bytes, /) -> Work:
            return Work(self.run) if is_slow else self.run()

        def run(self) -> Any:
            raise RuntimeError("defect")

    monkeypatch.setattr(Authentication, "exchange", lambda *_: Defect())
    failures = secure.brokers.services(1).failures
    before = sum(failures.counts.values())
    with secure.client() as client:
        begin_raw(client, "PLAIN")
        send_token(client, b"x")
        assert client.is_closed_within(10)
    assert sum(failures.counts.values()) == before + 1


# OAuth


def test_a_token_logs_in_until_it_expires(secure: Secure) -> None:
    with secure.client() as client:
        response = log_in_by_token(client, TOKENS.token("dora"))
        assert response.error_code == 0
        assert 300_000 < response.session_lifetime_ms <= 331_000
        assert is_served(client)
    assert secure.events[-1].principal == "User:dora"


@pytest.mark.parametrize(
    "token",
    [
        TOKENS.token(exp=time.time() - 60),
        TOKENS.token(nbf=time.time() + 600),
        TOKENS.token(aud="other"),
        TOKENS.token(iss="other"),
        TOKENS.unsigned_token(),
        TOKENS.symmetric_token(),
        TokenIssuer().token(),
    ],
    ids=["expired", "not-yet", "audience", "issuer", "none", "hs256", "other-key"],
)
def test_invalid_tokens_are_rejected(secure: Secure, token: str) -> None:
    with secure.client() as client:
        response = log_in_by_token(client, token)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_within(10)


# Renewals


def test_a_login_is_renewed_on_its_connection(tmp_path: Path) -> None:
    with secure_broker(tmp_path, **{"connections.max.reauth.ms": "3000"}) as secure:
        with secure.client() as client, secure.client() as other:
            assert log_in(client, "alice", "pencil").session_lifetime_ms == 3000
            assert log_in(other, "alice", "pencil").error_code == 0
            began_at = time.monotonic()
            wait_until(lambda: time.monotonic() > began_at + 1.2, "the first renewal")
            assert log_in(client, "alice", "pencil").session_lifetime_ms == 3000
            assert is_served(client)
            # Two renewals in one second are not allowed.
            assert handshake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
            wait_until(lambda: time.monotonic() > began_at + 3.2, "the end of the other login")
            assert is_served(client)
            assert not is_served(other)
        counters = secure.authentication.counters
        assert (counters.renewed["SECURE"], counters.expired["SECURE"]) == (1, 1)


def test_a_client_may_renew_after_its_login_has_expired(tmp_path: Path) -> None:
    settings = {"connections.max.reauth.ms": "1"}
    with secure_broker(tmp_path, **settings) as secure, secure.client() as client:
        assert log_in(client, "alice", "pencil").error_code == 0
        assert log_in(client, "alice", "pencil").error_code == 0


@pytest.mark.parametrize(
    ("user", "password", "mechanism", "code"),
    [
        ("alice", "wrong", "SCRAM-SHA-256", ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("bob", "pen", "SCRAM-SHA-256", ErrorCode.SASL_AUTHENTICATION_FAILED),
    ],
)
def test_a_renewal_may_not_change_the_principal(
    secure: Secure, user: str, password: str, mechanism: str, code: ErrorCode
) -> None:
    before = secure.authentication.counters.renewals_failed["SECURE"]
    with secure.client() as client:
        assert log_in(client, "alice", "pencil").error_code == 0
        assert log_in(client, user, password, mechanism).error_code == code
        assert client.is_closed_within(10)
    assert secure.authentication.counters.renewals_failed["SECURE"] == before + 1


def test_a_renewal_may_not_change_the_mechanism(secure: Secure) -> None:
    with secure.client() as client:
        assert log_in(client, "alice", "pencil").error_code == 0
        assert handshake(client, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_closed_within(10)


def test_nothing_else_is_served_during_a_renewal(secure: Secure) -> None:
    with secure.client() as client:
        assert log_in(client, "alice", "pencil").error_code == 0
        assert handshake(client).error_code == 0
        assert not is_served(client)


# Limits


def test_a_login_must_complete_in_time(tmp_path: Path) -> None:
    settings = {"connection.authentication.timeout.ms": "300"}
    with (
        secure_broker(tmp_path, **settings) as secure,
        secure.client() as idle,
        secure.client() as begun,
        secure.client() as done,
    ):
        handshake(begun)
        assert log_in(done, "alice", "pencil").error_code == 0
        assert idle.is_closed_within(10)
        assert begun.is_closed_within(10)
        assert is_served(done)


def code_or_none(client: RawClient) -> int | None:
    """Return the error code of a response; None if the broker closes the connection instead."""
    try:
        return int(client.receive().error_code)
    except (Closed, OSError):
        return None


def test_an_address_with_many_failures_is_slow_but_not_locked_out(tmp_path: Path) -> None:
    with secure_broker(tmp_path, **{"max.failed.authentications.per.ip": "3"}) as secure:
        for _ in range(3):
            with secure.client() as client:
                assert log_in(client, "alice", "wrong", "PLAIN").error_code
        with secure.client() as client:
            assert log_in(client, "alice", "pencil").error_code == 0
        clients = [secure.client() for _ in range(20)]
        try:
            for client in clients:
                handshake(client, "PLAIN")
                client.send(_message(b"\0alice\0wrong"), 2)
            codes = [code_or_none(client) for client in clients]
        finally:
            for client in clients:
                client.close()
        # An error response would be final for clients with the right password at this address.
        assert codes.count(ErrorCode.SASL_AUTHENTICATION_FAILED) == 5
        assert codes.count(None) == 15
        details = [event.detail for event in secure.events]
        assert sum("too many failed logins" in each for each in details) == 15


def test_steps_of_clients_that_have_left_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would queue up: clients can disconnect faster than passwords are verified."""
    with secure_broker(tmp_path) as secure:
        authentication = secure.authentication
        authentication.has_threads = True
        began, may_end, runs = threading.Event(), threading.Event(), []

        class Slow:
            def respond(self, message: bytes, /) -> Work:
                return Work(lambda: self.run(message))

            def run(self, message: bytes) -> Any:
                runs.append(message)
                began.set()
                assert may_end.wait(20)
                raise AuthenticationError("slow")

        monkeypatch.setattr(Authentication, "exchange", lambda *_: Slow())
        clients = [secure.client() for _ in range(10)]
        for client in clients:
            handshake(client, "PLAIN")
            client.send(_message(b"x"), 2)
        assert began.wait(20)
        for client in clients:
            client.close()
        failed = authentication.counters.failed
        wait_until(lambda: failed["SECURE"] == 10, "all of them to count as failures")
        may_end.set()
        wait_until(lambda: not secure.brokers.servers[1]._requests, "no requests")
        assert len(runs) <= THREADS_MAX


# Delegation tokens


def test_a_delegation_token_logs_its_owner_in(secure: Secure) -> None:
    with secure.client() as client:
        assert log_in(client, "alice", "pencil").error_code == 0
        renewer = CreateDelegationTokenRequest.Renewer(principal_type="User", principal_name="bob")
        made = client.call(CreateDelegationTokenRequest(renewers=[renewer], max_lifetime_ms=-1), 3)
        assert made.error_code == 0
        assert (made.principal_name, len(made.hmac)) == ("alice", 64)
        listed = client.call(DescribeDelegationTokenRequest(owners=None), 3)
        assert [each.token_id for each in listed.tokens] == [made.token_id]
    import base64

    password = base64.b64encode(made.hmac).decode()
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        with secure.client() as client:
            response = log_in(client, made.token_id, password, mechanism, ",tokenauth=true")
            assert response.error_code == 0
            assert 0 < response.session_lifetime_ms <= 24 * 3_600_000
            assert secure.events[-1].principal == "User:alice"
            again = client.call(CreateDelegationTokenRequest(), 3)
            assert again.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    with secure.client() as client:
        assert log_in(client, "bob", "pen").error_code == 0
        renewed = client.call(RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=5000), 2)
        assert renewed.error_code == 0
        assert renewed.expiry_timestamp_ms < made.expiry_timestamp_ms
        ended = client.call(
            ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2
        )
        assert ended.error_code == 0
        # As in Kafka the present time, which tools show as the end of the token.
        assert made.issue_timestamp_ms <= ended.expiry_timestamp_ms <= time.time() * 1000
        gone = client.call(RenewDelegationTokenRequest(hmac=made.hmac), 2)
        assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with secure.client() as client:
        response = log_in(client, made.token_id, password, extension=",tokenauth=true")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_delegation_tokens_need_an_authenticated_client(secure: Secure) -> None:
    with secure.plain_client() as client:
        for request, version in (
            (CreateDelegationTokenRequest(), 3),
            (RenewDelegationTokenRequest(), 2),
            (ExpireDelegationTokenRequest(), 2),
            (DescribeDelegationTokenRequest(), 3),
        ):
            code = client.call(request, version).error_code
            assert code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_a_token_for_another_owner_is_not_created(secure: Secure) -> None:
    with secure.client() as client:
        assert log_in(client, "bob", "pen").error_code == 0
        request = CreateDelegationTokenRequest(
            owner_principal_type="User", owner_principal_name="alice"
        )
        code = client.call(request, 3).error_code
        assert code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def test_a_client_that_disconnects_during_its_login_leaves_nothing(secure: Secure) -> None:
    for _ in range(20):
        client = secure.client()
        handshake(client, "PLAIN")
        client.send(_message(b"\0alice\0wrong"), 2)
        client.socket.shutdown(socket.SHUT_RDWR)
        client.close()
    gate = secure.brokers.servers[1]._gate
    wait_until(lambda: secure.brokers.ask(lambda: gate.connections) == 0, "no connections")
    wait_until(
        lambda: not secure.brokers.ask(lambda: secure.brokers.servers[1]._requests), "no requests"
    )
