"""OAuth tokens for OAUTHBEARER: fetched from a token endpoint, and kept while they are valid.

All connections of a process with the same credentials share one token. It is fetched again when
`_RENEWAL_SHARE` of its lifetime has passed, so that executors of a long job never log in with an
expired one. If the endpoint fails then, the present token serves until it expires.
"""

from __future__ import annotations

import base64
import http.client
import logging
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from millstream.protocol.connection_setting import OAuthLogin
from millstream.protocol.error import ConnectionLost

_logger = logging.getLogger(__name__)

_FETCH_S_MAX: Final = 10.0
_RESPONSE_BYTES_MAX: Final = 1 << 20
_RENEWAL_SHARE: Final = 0.8
#: The time from a renewal that failed to the next one, while the present token is valid.
_RETRY_S: Final = 5.0
#: The lifetime of a token whose response has none (RFC 6749 recommends that it has one).
_LIFETIME_S_DEFAULT: Final = 60.0


class Token(NamedTuple):
    """An access token, and how long it is valid from when it was fetched."""

    text: str
    lifetime_s: float


class _Kept(NamedTuple):
    """A token of the cache. Times are those of the cache's clock."""

    text: str
    renew_at: float
    expires_at: float


class TokenCache:
    """The tokens of this process by credentials. Thread-safe."""

    def __init__(
        self,
        fetch: Callable[[OAuthLogin], Token],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: dict[OAuthLogin, _Kept] = {}

    def token(self, login: OAuthLogin) -> str:
        """Return a valid token. Raises ConnectionLost if the endpoint returns none."""
        with self._lock:
            kept, now = self._tokens.get(login), self._clock()
            if kept is not None and now < kept.renew_at:
                return kept.text
            try:
                text, lifetime_s = self._fetch(login)
            except ConnectionLost as error:
                if kept is None or now >= kept.expires_at:
                    raise
                _logger.warning("%s; the present token is used until it expires", error)
                retry_at = min(now + _RETRY_S, kept.expires_at)
                self._tokens[login] = kept._replace(renew_at=retry_at)
                return kept.text
            renew_at, expires_at = now + lifetime_s * _RENEWAL_SHARE, now + lifetime_s
            self._tokens[login] = _Kept(text, renew_at, expires_at)
            return text

    def forget(self, login: OAuthLogin) -> None:
        """Drop a token that a broker has rejected."""
        with self._lock:
            self._tokens.pop(login, None)


def fetch_token(login: OAuthLogin) -> Token:
    """Fetch a token by the client credentials grant. Raises ConnectionLost.

    No error message contains the secret, or the response, which may contain a token."""
    form = {"grant_type": "client_credentials"}
    if login.scope:
        form["scope"] = login.scope
    pair = ":".join(map(urllib.parse.quote_plus, (login.client_id, login.client_secret)))
    request = urllib.request.Request(  # noqa: S310  # the settings allow http and https only
        login.token_url,
        data=urllib.parse.urlencode(form).encode(),
        headers={
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
        },
    )
    try:
        context = ssl.create_default_context(cafile=login.ca_path)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirect
        )
        with opener.open(request, timeout=_FETCH_S_MAX) as response:
            found = _decode(response.read(_RESPONSE_BYTES_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        raise _failed(login, f"HTTP status {error.code}") from None
    except OSError as error:
        raise _failed(login, str(error) or type(error).__name__) from None
    except http.client.HTTPException:
        raise _failed(login, "it does not speak HTTP") from None
    except ValueError:
        raise _failed(login, "its response is not a token response in JSON") from None
    return Token(found.access_token, found.expires_in)


class _Response(msgspec.Struct):
    access_token: str
    expires_in: float = _LIFETIME_S_DEFAULT


# Some endpoints send the lifetime as text.
_decode = msgspec.json.Decoder(_Response, strict=False).decode


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would send the secret to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _failed(login: OAuthLogin, why: str) -> ConnectionLost:
    return ConnectionLost(f"the token endpoint {login.token_url} gave no token: {why}")


#: The tokens of this process.
TOKENS: Final = TokenCache(fetch_token)
