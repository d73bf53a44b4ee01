"""Where the keys of OAuth tokens come from, and when they are fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.token_issuer import TokenIssuer, issuer_server
from millstream.security.oauth.key_source import KeySource, KeyTimes, fetch_keys, parse_keys
from millstream.security.sasl.exchange import AuthenticationError

ISSUER = TokenIssuer()
TIMES = KeyTimes(refresh_s=100.0, retry_s=1.0, retry_s_max=4.0, unknown_s_min=10.0)


class Endpoint:
    """A key set that counts fetches, and fails on request."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fetches = 0
        self.answer: Callable[[], bytes] = lambda: ISSUER.key_set
        self.source = KeySource("https://e", TIMES, lambda: self.now, self._fetch)

    def _fetch(self, url: str) -> bytes:
        self.fetches += 1
        return self.answer()

    def fail(self) -> bytes:
        raise OSError("down")

    def has(self, key_id: str | None) -> bool:
        try:
            self.source.find(key_id)
        except AuthenticationError:
            return False
        return True


def test_keys_are_kept_until_they_are_refreshed() -> None:
    endpoint = Endpoint()
    assert endpoint.has(ISSUER.key.kid)
    assert endpoint.has(None)
    endpoint.now = 99.0
    assert endpoint.has(ISSUER.key.kid)
    assert endpoint.fetches == 1
    endpoint.now = 100.0
    assert endpoint.has(ISSUER.key.kid)
    assert endpoint.fetches == 2


def test_an_unknown_key_is_fetched_at_most_once_an_interval() -> None:
    endpoint = Endpoint()
    other = TokenIssuer()
    other.rotate()
    assert endpoint.has(ISSUER.key.kid)
    for _ in range(5):
        assert not endpoint.has(other.key.kid)
    assert endpoint.fetches == 1
    endpoint.answer = lambda: other.key_set
    endpoint.now = 10.0
    assert endpoint.has(other.key.kid)
    assert not endpoint.has(ISSUER.key.kid)
    assert endpoint.fetches == 2


def test_former_keys_stay_in_use_while_the_endpoint_fails() -> None:
    endpoint = Endpoint()
    assert endpoint.has(ISSUER.key.kid)
    endpoint.answer = endpoint.fail
    for endpoint.now in (100.0, 100.5, 101.0, 102.0, 103.0, 107.0):
        assert endpoint.has(ISSUER.key.kid)
    # Pauses of 1, 2 and 4 seconds.
    assert endpoint.fetches == 5
    endpoint.answer = lambda: b"no JSON"
    endpoint.now = 200.0
    assert endpoint.has(ISSUER.key.kid)


def test_keys_that_are_not_public_keys_for_signatures_are_left_out() -> None:
    short = "A" * 100
    keys = [
        {"kty": "oct", "k": "AAAA", "kid": "symmetric"},
        {"kty": "RSA", "n": short, "e": "AQAB", "kid": "short"},
        {**ISSUER.key.as_dict(private=False), "use": "enc", "kid": "for-encryption"},
        {"kty": "EC", "crv": "P-256", "kid": "malformed"},
        "text",
    ]
    assert parse_keys(json.dumps({"keys": keys}).encode()) == {}
    for data in (b"[]", b"{}", b'{"keys": 3}', b"?"):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_keys(data)


def test_private_parts_of_a_key_are_not_needed() -> None:
    data = json.dumps({"keys": [ISSUER.key.as_dict(private=False)]}).encode()
    assert list(parse_keys(data)) == [ISSUER.key.kid]


def test_a_file_and_an_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "key set.json"
    path.write_bytes(ISSUER.key_set)
    assert fetch_keys(path.as_uri()) == ISSUER.key_set
    with issuer_server(ISSUER) as server:
        assert fetch_keys(f"{server.url}/jwks") == ISSUER.key_set
    with pytest.raises(OSError):  # noqa: PT011
        fetch_keys((tmp_path / "missing").as_uri())
