"""The server side of SCRAM, against Millstream's client, the examples of the RFCs, and attacks."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.metadata.security_record import ScramCredential
from millstream.model.principal import Principal
from millstream.protocol.connection_setting import Login
from millstream.protocol.sasl import Scram
from millstream.security.sasl.exchange import (
    SCRAM_MECHANISMS,
    Accepted,
    AuthenticationError,
    Challenge,
    Identity,
    Mechanism,
    Work,
)
from millstream.security.sasl.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MIN,
    ScramServer,
    ScramUser,
    credential_of,
    fake_credential,
    is_password_valid,
    make_credential,
    make_salt,
)

SHA_256, SHA_512 = SCRAM_MECHANISMS
SECRET = b"secret of this process"
PASSWORD = "pencil"


class Source:
    """The credentials of a test."""

    def __init__(self, users: Mapping[str, ScramCredential], tokens: Mapping[str, str]) -> None:
        self._users = users
        self._tokens = tokens

    def user(self, mechanism: Mechanism, name: str, /) -> ScramUser:
        found = self._users.get(name)
        if found is None:
            return ScramUser(fake_credential(mechanism, name, SECRET), None)
        return ScramUser(found, Identity(Principal("User", name)))

    def token(self, mechanism: Mechanism, token_id: str, /) -> ScramUser:
        password = self._tokens.get(token_id)
        if password is None:
            return ScramUser(fake_credential(mechanism, token_id, SECRET), None)
        credential = make_credential(mechanism, password, b"salt", ITERATIONS_MIN)
        return ScramUser(credential, Identity(Principal("User", "owner"), is_token=True))


CREDENTIALS = {
    mechanism: make_credential(mechanism, PASSWORD, b"\x00salt", ITERATIONS_MIN)
    for mechanism in SCRAM_MECHANISMS
}


def server(mechanism: Mechanism = SHA_256, user: str = "alice") -> ScramServer:
    return ScramServer(
        mechanism, Source({user: CREDENTIALS[mechanism]}, {"t-1": "of-token"}), "server-nonce"
    )


def challenge_of(exchange: ScramServer, message: bytes) -> bytes:
    step = exchange.respond(message)
    if isinstance(step, Work):
        step = step.run()
    assert isinstance(step, Challenge)
    return step.data


def log_in(exchange: ScramServer, client: Scram) -> Identity:
    challenge = challenge_of(exchange, client.first())
    step = exchange.respond(client.final(challenge))
    assert isinstance(step, Accepted)
    client.check(step.data)
    return step.identity


def client_of(user: str, password: str, mechanism: Mechanism = SHA_256) -> Scram:
    return Scram(Login(mechanism, user, password), "client-nonce")


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "zoë", "=2C", ","])
def test_the_right_password_is_accepted(mechanism: Mechanism, user: str) -> None:
    identity = log_in(server(mechanism, user), client_of(user, PASSWORD, mechanism))
    assert identity == Identity(Principal("User", user))


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "pencils"), ("bob", PASSWORD)])
def test_a_wrong_password_and_an_unknown_user_fail_equally(
    mechanism: Mechanism, user: str, password: str
) -> None:
    exchange, client = server(mechanism), client_of(user, password, mechanism)
    challenge = challenge_of(exchange, client.first())
    assert f"i={ITERATIONS_DEFAULT}".encode() in challenge
    with pytest.raises(AuthenticationError, match="wrong user name or password"):
        exchange.respond(client.final(challenge))


def test_an_unknown_user_has_the_same_challenge_each_time() -> None:
    first = client_of("bob", "x").first()
    assert challenge_of(server(), first) == challenge_of(server(), first)
    other = client_of("bobby", "x").first()
    assert challenge_of(server(), first) != challenge_of(server(), other)


def test_salts_of_unknown_users_look_like_those_of_known_ones() -> None:
    fakes = [fake_credential(SHA_256, f"user-{number}", SECRET).salt for number in range(100)]
    reals = [make_salt(lambda bits, seed=number: (seed + 1) << (bits - 7)) for number in range(64)]
    assert {len(each) for each in fakes} <= {24, 25, 26}
    assert all(each.decode().isalnum() for each in fakes + reals)
    assert len(set(fakes)) == len(fakes)


def test_cve_2024_56128_the_nonce_must_be_exactly_the_one_that_the_server_sent() -> None:
    # Kafka once accepted every nonce that began with the client's own.
    exchange, client = server(), client_of("alice", PASSWORD)
    challenge = challenge_of(exchange, client.first())
    forged = challenge.replace(b"server-nonce", b"chosen-by-client")
    with pytest.raises(AuthenticationError, match="nonce"):
        exchange.respond(client.final(forged))
    for nonce in ("client-nonce", "client-nonceserver-nonc", "client-nonceserver-nonce2"):
        exchange, client = server(), client_of("alice", PASSWORD)
        challenge = challenge_of(exchange, client.first())
        forged = challenge.replace(b"client-nonceserver-nonce", nonce.encode())
        with pytest.raises(AuthenticationError, match="nonce"):
            exchange.respond(client.final(forged))


def test_rfc_7677_example() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = make_credential(SHA_256, PASSWORD, salt, 4096)
    exchange = ScramServer(
        SHA_256, Source({"user": credential}, {}), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    challenge = challenge_of(exchange, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    step = exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert isinstance(step, Accepted)
    assert step.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n=alice,r=n",
        b"p=tls-unique,,n=alice,r=n",
        b"n,,m=x,n=alice,r=n",
        b"n,,n=,r=n",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=n",
        b"n,,n=al=2Dice,r=n",
        b"n,,n=alice,r=n\x00",
        b"n,a=bob,n=alice,r=n",
        b"x,,n=alice,r=n",
        b"n,,n=alice,r=\xff",
        b"n,,n=alice,r=n,=x",
        b"n,,r=n,n=alice",
    ],
)
def test_malformed_first_messages_fail(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        server().respond(message)


@pytest.mark.parametrize("header", [b"n,,", b"y,,", b"n,a=alice,", b"y,a=alice,"])
def test_the_final_message_repeats_the_header(header: bytes) -> None:
    client = client_of("alice", PASSWORD)
    bare = client.first().removeprefix(b"n,,")
    exchange = server()
    challenge = challenge_of(exchange, header + bare)
    final = client.final(challenge)
    if header == b"n,,":
        assert isinstance(exchange.respond(final), Accepted)
    else:
        # The client binds "n,,", which is not what it sent before.
        with pytest.raises(AuthenticationError, match="channel binding"):
            exchange.respond(final)


@pytest.mark.parametrize(
    "message",
    [b"", b"c=biws", b"c=biws,r=x", b"c=b!ws,r=x,p=AA==", b"c=biws,r=x,p=A", b"c=,r=x,p=", b"\xff"],
)
def test_malformed_final_messages_fail(message: bytes) -> None:
    exchange = server()
    challenge_of(exchange, client_of("alice", PASSWORD).first())
    with pytest.raises(AuthenticationError):
        exchange.respond(message)


def test_delegation_tokens_log_in_by_an_extension() -> None:
    login = Login(SHA_512, "t-1", "of-token")
    client = Scram(login, "client-nonce")
    # Millstream's client has no tokens: the extension is added to what it sends and signs.
    client._bare += ",tokenauth=true"
    identity = log_in(server(SHA_512), client)
    assert identity.is_token
    assert identity.principal.name == "owner"


def test_a_token_is_no_user_and_a_user_is_no_token() -> None:
    plain = client_of("t-1", "of-token")
    with pytest.raises(AuthenticationError):
        log_in(server(), plain)
    of_token = client_of("alice", PASSWORD)
    of_token._bare += ",tokenauth=true"
    with pytest.raises(AuthenticationError):
        log_in(server(), of_token)


def test_credentials_with_few_iterations_are_rejected() -> None:
    weak = make_credential(SHA_256, PASSWORD, b"salt", ITERATIONS_MIN - 1)
    exchange = ScramServer(SHA_256, Source({"alice": weak}, {}), "n")
    with pytest.raises(AuthenticationError, match="iterations"):
        exchange.respond(client_of("alice", PASSWORD).first())


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_credential_verifies_a_password(mechanism: Mechanism) -> None:
    assert is_password_valid(mechanism, CREDENTIALS[mechanism], PASSWORD)
    assert not is_password_valid(mechanism, CREDENTIALS[mechanism], PASSWORD + " ")
    assert not is_password_valid(mechanism, fake_credential(mechanism, "bob", SECRET), PASSWORD)


def test_a_credential_follows_from_a_salted_password() -> None:
    import hashlib

    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"\x00salt", ITERATIONS_MIN)
    made = credential_of(SHA_256, salted, b"\x00salt", ITERATIONS_MIN)
    assert made == CREDENTIALS[SHA_256]


_FRAGMENTS = st.sampled_from(
    [b"n,,", b"y,,", b"n=alice", b",", b"r=", b"client-nonce", b"server-nonce", b"c=biws", b"p=",
     b"AAAA", b"=", b"=2C", b"tokenauth=true", b"a=alice", b"\x00", b"\xff", b"v=", b"m=x"]
)  # fmt: skip
MESSAGES = st.one_of(
    st.binary(max_size=200), st.lists(_FRAGMENTS, max_size=12).map(b"".join), st.just(b"n" * 10**5)
)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_no_random_messages_are_accepted(messages: list[bytes]) -> None:
    exchange = server()
    for message in messages:
        try:
            step = exchange.respond(message)
            if isinstance(step, Work):
                step = step.run()
        except AuthenticationError:
            return
        assert isinstance(step, Challenge)


@given(MESSAGES)
def test_no_random_final_message_is_accepted(message: bytes) -> None:
    exchange = server()
    challenge_of(exchange, client_of("alice", "?").first())
    with pytest.raises(AuthenticationError):
        exchange.respond(message)
