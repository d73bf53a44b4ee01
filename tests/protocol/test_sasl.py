"""SCRAM by the example of RFC 7677."""

from __future__ import annotations

import pytest

from millstream.model.error import BrokerError
from millstream.protocol.connection_setting import Login
from millstream.protocol.sasl import Scram

_NONCE = "rOprNGfwEbeRWgbNEkqO"
_CHALLENGE = f"r={_NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
_PROOF = (
    f"c=biws,r={_NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
).encode()
_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _exchange() -> Scram:
    return Scram(Login("SCRAM-SHA-256", "user", "pencil"), _NONCE)


def test_exchange() -> None:
    scram = _exchange()
    assert scram.first() == f"n,,n=user,r={_NONCE}".encode()
    assert scram.final(_CHALLENGE) == _PROOF
    scram.check(_SIGNATURE)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"e=other-error",
        b"\xff",
        _CHALLENGE.replace(b"r=rO", b"r=XX"),
        _CHALLENGE.replace(b"s=W2", b"s=!"),
        _CHALLENGE[:-4] + b"0",
        _CHALLENGE[:-4] + b"many",
    ],
)
def test_challenges_that_are_none(challenge: bytes) -> None:
    with pytest.raises(BrokerError, match="not SCRAM's"):
        _exchange().final(challenge)


def test_a_challenge_that_makes_the_password_easy_to_guess_is_rejected() -> None:
    with pytest.raises(BrokerError, match="4095 iterations are too few"):
        _exchange().final(_CHALLENGE.replace(b"i=4096", b"i=4095"))


def test_server_that_does_not_know_the_password() -> None:
    scram = _exchange()
    scram.final(_CHALLENGE)
    for response in (_SIGNATURE.replace(b"v=6", b"v=7"), b"v=6", b"\xff", b""):
        with pytest.raises(BrokerError, match="did not prove"):
            scram.check(response)
