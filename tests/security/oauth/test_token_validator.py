"""Which OAuth tokens are accepted."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.token_issuer import AUDIENCE, ISSUER, TokenIssuer
from millstream.security.oauth.key_source import KeySource, KeyTimes
from millstream.security.oauth.token_validator import GROUPS_MAX, TokenRules, TokenValidator
from millstream.security.sasl.exchange import AuthenticationError

NOW = time.time()
#: The issuer and the validators have one clock, which stands still.
ISSUER_OF_TESTS = TokenIssuer(lambda: NOW)


def validator(**changes: Any) -> TokenValidator:
    rules = {"issuer": ISSUER, "audiences": (AUDIENCE,), "clock_skew_s": 30, **changes}
    keys = KeySource("file:///none", KeyTimes(), lambda: 1.0, lambda _: ISSUER_OF_TESTS.key_set)
    return TokenValidator(keys, TokenRules(**rules), lambda: int(NOW * 1000))


VALIDATOR = validator()


def test_a_valid_token_names_its_user() -> None:
    token = ISSUER_OF_TESTS.token("alice", exp=int(NOW) + 60, groups=["a", "b", 3])
    identity = VALIDATOR.validate(token)
    assert str(identity.principal) == "User:alice"
    assert identity.groups == ("a", "b")
    # The token is accepted for as long as the clocks may differ.
    assert identity.expires_ms == (int(NOW) + 90) * 1000


def test_a_token_with_too_many_groups_is_rejected() -> None:
    groups = [str(number) for number in range(GROUPS_MAX + 1)]
    token = ISSUER_OF_TESTS.token(groups=groups[:-1])
    assert VALIDATOR.validate(token).groups == tuple(groups[:-1])
    # An ACL may deny something to the group that was left out.
    with pytest.raises(AuthenticationError, match="1001 groups"):
        VALIDATOR.validate(ISSUER_OF_TESTS.token(groups=groups))


@pytest.mark.parametrize("depths", [range(1, 1100), [10_000, 200_000]], ids=["all", "deep"])
def test_deeply_nested_headers_are_rejected(depths: Iterable[int]) -> None:
    """Some can be parsed once, but not again by a function that calls more functions."""
    key_id = ISSUER_OF_TESTS.key.kid
    for depth in depths:
        nested = "[" * depth + "]" * depth
        for header in (nested, f'{{"alg":"RS256","kid":"{key_id}","x":{nested}}}'):
            encoded = base64.urlsafe_b64encode(header.encode()).rstrip(b"=").decode()
            with pytest.raises(AuthenticationError):
                VALIDATOR.validate(f"{encoded}.e30.e30")


@pytest.mark.parametrize(
    "header",
    [
        {"pi.atm": "1"},
        {"x5t": "3FTKrLQ5ITnUs5dR5LChP1zYRhw"},
        {"x5c": ["TUlJQg==" * 200, "TUlJQg==" * 200]},
        {"unknown": {"a": [1]}},
    ],
    ids=lambda header: next(iter(header)),
)
def test_parameters_of_the_header_that_are_not_known_are_ignored(header: dict[str, Any]) -> None:
    token = ISSUER_OF_TESTS.token_with_header(**header)
    assert VALIDATOR.validate(token).principal.name == "alice"


def test_critical_parameters_of_the_header_must_be_known() -> None:
    for header in ({"crit": ["pi.atm"], "pi.atm": "1"}, {"crit": ["missing"]}, {"crit": 3}):
        with pytest.raises(AuthenticationError):
            VALIDATOR.validate(ISSUER_OF_TESTS.token_with_header(**header))


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 31},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": float("nan")},
        {"exp": True},
        {"iat": None},
        {"iat": NOW + 31},
        {"nbf": NOW + 31},
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "other"},
        {"aud": ["other", "another"]},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\nb"},
    ],
)
def test_tokens_with_wrong_claims_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError):
        VALIDATOR.validate(ISSUER_OF_TESTS.token(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 29},
        {"iat": NOW + 29},
        {"nbf": NOW + 29},
        {"aud": ["x", AUDIENCE]},
        {"exp": 1e300},
    ],
)
def test_tokens_within_the_rules_are_accepted(changes: dict[str, Any]) -> None:
    assert VALIDATOR.validate(ISSUER_OF_TESTS.token(**changes)).principal.name == "alice"


def test_tokens_without_a_signature_are_rejected() -> None:
    with pytest.raises(AuthenticationError, match="'none'"):
        VALIDATOR.validate(ISSUER_OF_TESTS.unsigned_token())


def test_tokens_signed_with_the_public_key_as_a_secret_are_rejected() -> None:
    with pytest.raises(AuthenticationError, match="'HS256'"):
        VALIDATOR.validate(ISSUER_OF_TESTS.symmetric_token())


def test_tokens_of_another_key_are_rejected() -> None:
    stranger = TokenIssuer()
    assert stranger.key.kid == ISSUER_OF_TESTS.key.kid
    with pytest.raises(AuthenticationError, match="signature"):
        VALIDATOR.validate(stranger.token())


def test_changed_tokens_are_rejected() -> None:
    head, _, tail = ISSUER_OF_TESTS.token().rpartition(".")
    _, body, _ = ISSUER_OF_TESTS.token("bob").split(".")
    with pytest.raises(AuthenticationError, match="signature"):
        VALIDATOR.validate(f"{head.split('.')[0]}.{body}.{tail}")


def test_cve_2025_27817_no_url_of_a_client_is_fetched() -> None:
    # Kafka once let a client's settings choose what is fetched. Here the only URL is the broker's.
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return ISSUER_OF_TESTS.key_set

    keys = KeySource("https://own.example/jwks", KeyTimes(unknown_s_min=0), lambda: 1.0, fetch)
    rules = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
    checked = TokenValidator(keys, rules, lambda: int(NOW * 1000))
    evil = "file:///etc/passwd"
    for header in (
        {"jku": evil},
        {"x5u": evil},
        {"kid": evil},
        {"kid": "../../etc/passwd"},
        {"jwk": {"kty": "oct", "k": "AAAA"}},
    ):
        try:
            checked.validate(ISSUER_OF_TESTS.token_with_header(**header))
        except AuthenticationError:
            continue
    assert set(asked) == {"https://own.example/jwks"}


def test_required_scopes() -> None:
    checked = validator(scopes=("read", "write"))
    assert checked.validate(ISSUER_OF_TESTS.token(scope="write read"))
    assert checked.validate(ISSUER_OF_TESTS.token(scope=["read", "write", "x"]))
    for scope in ("read", "", None, 3):
        with pytest.raises(AuthenticationError, match="lacks the scope"):
            checked.validate(ISSUER_OF_TESTS.token(scope=scope))


def test_other_claim_names() -> None:
    checked = validator(
        subject_claim="client_id", scope_claim="scp", scopes=("a",), groups_claim="roles"
    )
    token = ISSUER_OF_TESTS.token(client_id="app", scp=["a"], roles="r", groups=["g"])
    identity = checked.validate(token)
    assert (identity.principal.name, identity.groups) == ("app", ("r",))


@given(st.one_of(st.text(max_size=100), st.from_regex(r"[\w-]{0,40}\.[\w-]{0,40}\.[\w-]{0,40}")))
def test_other_text_is_no_token(text: str) -> None:
    with pytest.raises(AuthenticationError):
        VALIDATOR.validate(text)
