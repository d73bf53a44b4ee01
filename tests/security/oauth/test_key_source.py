"""Where the keys of OAuth tokens come from, and when they are fetched."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.token_issuer import TokenIssuer, issuer_server, server_without_http
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
        self.source = KeySource(
            "https://e", TIMES, lambda: self.now, self._fetch, lambda run: run()
        )

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


def test_a_known_key_does_not_wait_for_the_endpoint() -> None:
    """The endpoint hangs: once for a refresh, once for a token with an unknown key."""
    hangs, released = threading.Event(), threading.Event()

    def hang() -> bytes:
        hangs.set()
        assert released.wait(20)
        raise OSError("down")

    endpoint = Endpoint()
    endpoint.source = KeySource("https://e", TIMES, lambda: endpoint.now, endpoint._fetch)
    assert endpoint.has(ISSUER.key.kid)
    endpoint.answer = hang
    endpoint.now = 100.0
    assert endpoint.has(ISSUER.key.kid)
    assert hangs.wait(20)
    assert endpoint.has(ISSUER.key.kid)
    # The fetch is slow by now: nobody else waits for it.
    endpoint.now = 102.0
    assert not endpoint.has("unknown")
    released.set()
    with endpoint.source._changed:
        assert endpoint.source._changed.wait_for(
            lambda: endpoint.source._fetching_since is None, 20
        )
    assert endpoint.fetches == 2


def test_a_token_with_an_unknown_key_waits_for_the_fetch_of_another() -> None:
    """Many clients log in with the new key at once: none of them is rejected."""
    other = TokenIssuer()
    other.rotate()
    begun, released = threading.Event(), threading.Event()

    def answer() -> bytes:
        begun.set()
        assert released.wait(20)
        return other.key_set

    endpoint = Endpoint()
    assert endpoint.has(ISSUER.key.kid)
    endpoint.answer = answer
    endpoint.now = 10.0
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(endpoint.has, other.key.kid)
        assert begun.wait(20)
        others = [pool.submit(endpoint.has, other.key.kid) for _ in range(3)]
        released.set()
        assert first.result(20)
        assert all(each.result(20) for each in others)
    assert endpoint.fetches == 2


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


def test_an_endpoint_that_does_not_speak_http() -> None:
    with server_without_http() as url, pytest.raises(OSError, match="does not speak HTTP"):
        fetch_keys(url)
