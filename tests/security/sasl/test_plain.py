"""The server side of PLAIN."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.principal import Principal
from millstream.security.sasl import plain
from millstream.security.sasl.exchange import Accepted, AuthenticationError, Mechanism, Work
from millstream.security.sasl.plain import PlainServer
from millstream.security.sasl.scram import ScramUser
from security.sasl.test_scram import CREDENTIALS, PASSWORD, Source

SERVER = PlainServer(
    {"carol": "of-carol"}, Source({"alice": CREDENTIALS[Mechanism.SCRAM_SHA_256]}, {})
)


def log_in(message: bytes) -> str:
    step = SERVER.respond(message)
    assert isinstance(step, Work)
    done = step.run()
    assert isinstance(done, Accepted)
    assert done.data == b""
    assert done.identity.principal == Principal("User", done.identity.principal.name)
    return done.identity.principal.name


@pytest.mark.parametrize("authzid", ["", "carol"])
def test_a_user_of_the_settings(authzid: str) -> None:
    assert log_in(f"{authzid}\0carol\0of-carol".encode()) == "carol"


def test_a_user_with_a_scram_credential() -> None:
    assert log_in(f"\0alice\0{PASSWORD}".encode()) == "alice"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"carol\0of-carol",
        b"\0carol\0",
        b"\0\0of-carol",
        b"\0carol\0wrong",
        b"\0alice\0of-carol",
        b"\0nobody\0x",
        b"\0nobody\0",
        b"alice\0carol\0of-carol",
        b"\0carol\0of-carol\0",
        b"\0carol\0" + b"x" * 5000,
        b"\xff\0carol\0of-carol",
    ],
)
def test_wrong_credentials_and_malformed_messages_fail(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        log_in(message)


@pytest.mark.parametrize("user", ["carol", "alice", "nobody"])
def test_every_login_derives_a_key_for_each_mechanism(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time of a login shows neither whether the user exists, nor where.
    checked: list[tuple[Mechanism, int]] = []

    def check(mechanism: Mechanism, credential: object, password: str) -> bool:
        checked.append((mechanism, credential.iterations))  # type: ignore[attr-defined]
        return False

    monkeypatch.setattr(plain, "is_password_valid", check)
    with pytest.raises(AuthenticationError, match="wrong user name or password"):
        log_in(f"\0{user}\0wrong".encode())
    assert checked == [(Mechanism.SCRAM_SHA_256, 4096), (Mechanism.SCRAM_SHA_512, 4096)]


class NoUsers:
    def user(self, mechanism: Mechanism, name: str, /) -> ScramUser:
        return Source({}, {}).user(mechanism, name)


@given(st.one_of(st.binary(max_size=200), st.text().map(str.encode)))
def test_no_random_message_is_accepted(message: bytes) -> None:
    server = PlainServer({}, NoUsers())
    try:
        step = server.respond(message)
    except AuthenticationError:
        return
    assert isinstance(step, Work)
    with pytest.raises(AuthenticationError):
        step.run()
