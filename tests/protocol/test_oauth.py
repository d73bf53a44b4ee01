"""Tokens for OAUTHBEARER: the endpoint, the cache, and the settings."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

import pytest

from harness.token_issuer import server_without_http
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.connection_setting import OAuthLogin, connection_settings
from millstream.protocol.error import ConnectionLost, SettingError
from millstream.protocol.oauth import Token, TokenCache, fetch_token

SECRET = "hunter/2 secret"


@contextmanager
def endpoint(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[Endpoint]:
    found = Endpoint(status, body, headers or {})
    with found.server:
        thread = threading.Thread(target=found.server.serve_forever)
        thread.start()
        yield found
        found.server.shutdown()
        thread.join(10)


class Endpoint:
    """A token endpoint that records its requests."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        recorded = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                recorded.append((self.headers["Authorization"], parse_qs(form)))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.login = OAuthLogin(
            f"http://127.0.0.1:{self.server.server_port}/token", "app", SECRET, scope="orders"
        )


def test_a_token_is_fetched_by_client_credentials() -> None:
    with endpoint(200, b'{"access_token": "abc", "expires_in": "300"}') as found:
        assert fetch_token(found.login) == Token("abc", 300.0)
    authorization, form = found.requests[0]
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"app:hunter%2F2+secret"
    assert form == {"grant_type": ["client_credentials"], "scope": ["orders"]}


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, b'{"error": "invalid_client"}', "HTTP status 401"),
        (200, b"<html>", "not a token response"),
        (200, b'{"token": "abc"}', "not a token response"),
    ],
)
def test_an_endpoint_without_a_token_is_reported_without_secrets(
    status: int, body: bytes, reason: str
) -> None:
    with endpoint(status, body) as found, pytest.raises(ConnectionLost, match=reason) as caught:
        fetch_token(found.login)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(found.login)


def test_a_redirect_does_not_send_the_secret_to_another_host() -> None:
    with endpoint(200, b'{"access_token": "abc"}') as other:
        headers = {"Location": other.login.token_url}
        with endpoint(302, b"", headers) as found, pytest.raises(ConnectionLost, match="302"):
            fetch_token(found.login)
    assert not other.requests


def test_an_endpoint_that_cannot_be_reached_is_reported() -> None:
    with endpoint(200, b"") as found:
        login = found.login
    with pytest.raises(ConnectionLost, match="gave no token"):
        fetch_token(login)


def test_an_endpoint_that_does_not_speak_http_is_reported() -> None:
    with (
        server_without_http() as url,
        pytest.raises(ConnectionLost, match="does not speak HTTP"),
    ):
        fetch_token(OAuthLogin(url, "app", SECRET))


def test_a_token_is_kept_until_most_of_its_lifetime_has_passed() -> None:
    login = OAuthLogin("http://host/token", "app", SECRET)
    now = 1000.0
    fetched: list[OAuthLogin] = []

    def fetch(wanted: OAuthLogin) -> Token:
        fetched.append(wanted)
        return Token(f"token-{len(fetched)}", 100.0)

    cache = TokenCache(fetch, lambda: now)
    assert [cache.token(login), cache.token(login)] == ["token-1", "token-1"]
    now = 1079.0
    assert cache.token(login) == "token-1"
    now = 1080.0
    assert cache.token(login) == "token-2"
    cache.forget(login)
    assert cache.token(login) == "token-3"
    assert cache.token(OAuthLogin("http://host/token", "other", SECRET)) == "token-4"


def test_a_valid_token_serves_while_the_endpoint_fails() -> None:
    login = OAuthLogin("http://host/token", "app", SECRET)
    now = 1000.0
    outcomes: list[Token | ConnectionLost] = [Token("first", 100.0)]
    calls = 0

    def fetch(_: OAuthLogin) -> Token:
        nonlocal calls
        calls += 1
        if isinstance(outcomes[-1], ConnectionLost):
            raise outcomes[-1]
        return outcomes[-1]

    cache = TokenCache(fetch, lambda: now)
    assert cache.token(login) == "first"
    outcomes.append(ConnectionLost("the endpoint is down"))
    now = 1080.0
    assert [cache.token(login), cache.token(login)] == ["first", "first"]
    assert calls == 2, "not every login waits for an endpoint that is down"
    now = 1099.0
    assert cache.token(login) == "first"
    assert calls == 3
    now = 1100.0
    with pytest.raises(ConnectionLost, match="down"):
        cache.token(login)
    outcomes.append(Token("second", 100.0))
    assert cache.token(login) == "second"


def _parse(**properties: str) -> object:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    base = {
        "bootstrap.servers": "one",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    return connection_settings(ClientProperties({**base, **named}, "kafka.")).login


def test_settings_by_librdkafka_names_and_by_jaas() -> None:
    expected = OAuthLogin("https://id/token", "app", SECRET, "orders", (("tenant", "a"),))
    by_name = _parse(
        sasl_oauthbearer_token_endpoint_url="https://id/token",
        sasl_oauthbearer_client_id="app",
        sasl_oauthbearer_client_secret=SECRET,
        sasl_oauthbearer_scope="orders",
        sasl_oauthbearer_extensions="tenant=a",
    )
    by_jaas = _parse(
        sasl_oauthbearer_token_endpoint_url="https://id/token",
        sasl_jaas_config=f'Module required clientId="app" clientSecret="{SECRET}" scope="orders";',
        sasl_oauthbearer_extensions="tenant=a",
    )
    assert by_name == by_jaas == expected


def test_a_url_that_would_read_a_file_is_rejected() -> None:
    with pytest.raises(SettingError, match="https://"):
        _parse(
            sasl_oauthbearer_token_endpoint_url="file:///etc/passwd",
            sasl_oauthbearer_client_id="app",
            sasl_oauthbearer_client_secret=SECRET,
        )


def test_missing_settings_are_named_with_their_prefix() -> None:
    with pytest.raises(SettingError, match=r"kafka\.sasl\.oauthbearer\.client\.secret"):
        _parse(sasl_oauthbearer_client_id="app")
