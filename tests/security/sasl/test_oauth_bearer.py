"""The server side of OAUTHBEARER."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.principal import Principal
from millstream.security.sasl.exchange import (
    Accepted,
    AuthenticationError,
    Challenge,
    Identity,
    Work,
)
from millstream.security.sasl.oauth_bearer import OAuthBearerServer, parse_message

TOKEN = "abc.def-_.ghi"


def validate(token: str) -> Identity:
    if token != TOKEN:
        raise AuthenticationError("it is another token")
    return Identity(Principal("User", "alice"))


def respond(server: OAuthBearerServer, message: bytes) -> Challenge | Accepted:
    step = server.respond(message)
    assert isinstance(step, Work)
    return step.run()


@pytest.mark.parametrize(
    "message",
    [
        f"n,,\x01auth=Bearer {TOKEN}\x01\x01",
        f"y,,\x01auth=Bearer {TOKEN}\x01\x01",
        f"n,a=alice,\x01auth=bearer {TOKEN}\x01logicalCluster=lkc-1\x01\x01",
        f"n,,\x01host=h\x01port=9092\x01auth=Bearer  {TOKEN}\x01\x01",
    ],
)
def test_a_valid_token_is_accepted(message: str) -> None:
    step = respond(OAuthBearerServer(validate), message.encode())
    assert isinstance(step, Accepted)
    assert step.identity.principal.name == "alice"


@pytest.mark.parametrize("authzid", ["", "a=bob"])
def test_an_invalid_token_gets_an_error_and_then_fails(authzid: str) -> None:
    token = TOKEN if authzid else "other"
    server = OAuthBearerServer(validate)
    step = respond(server, f"n,{authzid},\x01auth=Bearer {token}\x01\x01".encode())
    assert step == Challenge(b'{"status":"invalid_token"}')
    # A second token has no chance in the same exchange.
    for message in (b"\x01", f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode()):
        with pytest.raises(AuthenticationError):
            server.respond(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01Auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"p=x,,\x01auth=Bearer a\x01\x01",
        b"n,a=b=c,\x01auth=Bearer a\x01\x01",
        b"\xff",
    ],
)
def test_malformed_messages_fail(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        parse_message(message)


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=3))
def test_no_random_message_is_accepted(messages: list[bytes]) -> None:
    server = OAuthBearerServer(validate)
    for message in messages:
        try:
            step = respond(server, message)
        except AuthenticationError:
            return
        assert isinstance(step, Challenge)
