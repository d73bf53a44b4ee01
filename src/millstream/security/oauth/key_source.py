"""The keys that verify OAuth tokens: a JSON Web Key Set from a file or an HTTP endpoint, cached.

The URL comes from the broker's own settings. Nothing in a token selects where keys come from: the
headers `jku`, `jwk`, `x5u` and `x5c` are ignored. The endpoint may not redirect.

The set is fetched again after `refresh_s`, or when a token names an unknown key, but then at most
once in `unknown_s_min`. A failed fetch is retried with a growing pause, and the former keys stay in
use. A token with a known key never waits for a fetch. A token with an unknown key waits, but not
for a fetch of another one that is slow, so that they do not hold all threads.

Only public keys for signatures are taken: RSA of at least 2048 bits, and elliptic curves. A
symmetric key would let anyone who can read the set sign tokens.

Blocks: call it outside of the event loop. Thread-safe.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from millstream.security.sasl.exchange import AuthenticationError

_logger = logging.getLogger(__name__)

_FETCH_S_MAX: Final = 10.0
#: Time after which a fetch is slow.
SLOW_FETCH_S: Final = 1.0
_RESPONSE_BYTES_MAX: Final = 1 << 20
_KEYS_MAX: Final = 100
_RSA_BITS_MIN: Final = 2048

Key: TypeAlias = RSAKey | ECKey


class KeyTimes(NamedTuple):
    """When keys are fetched, in seconds."""

    refresh_s: float = 3600.0
    retry_s: float = 0.1
    retry_s_max: float = 10.0
    #: Shortest time between fetches for unknown keys.
    unknown_s_min: float = 10.0


class KeySource:
    """The keys of one endpoint."""

    def __init__(
        self,
        url: str,
        times: KeyTimes,
        monotonic: Callable[[], float],
        fetch: Callable[[str], bytes] | None = None,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._url = url
        self._times = times
        self._monotonic = monotonic
        self._fetch = fetch or fetch_keys
        #: Runs a fetch for which no login waits.
        self._start = start or _start_thread
        #: Guards the rest; notified at the end of each fetch.
        self._changed = threading.Condition()
        self._keys: dict[str, Key] = {}
        #: Since when a thread fetches; None if none does.
        self._fetching_since: float | None = None
        #: When the last fetch that succeeded ended.
        self._fetched_at: float | None = None
        self._next_at = 0.0
        self._retry_s = times.retry_s

    def find(self, key_id: str | None) -> Key:
        """Return the key with an id; without an id the only key. Raises AuthenticationError."""
        with self._changed:
            now = self._monotonic()
            found = self._get(key_id)
            age_s = self._times.unknown_s_min if found is None else self._times.refresh_s
            fetches = self._begin(now, age_s)
            if found is None and not fetches and self._fetching_since is not None:
                wait_s = max(self._fetching_since + SLOW_FETCH_S - now, 0.0)
                self._changed.wait_for(lambda: self._fetching_since is None, wait_s)
        if fetches and found is not None:
            self._start(self._refresh)
            return found
        if fetches:
            self._refresh()
        if found is None:
            with self._changed:
                found = self._get(key_id)
        if found is None:
            raise AuthenticationError(f"the token is signed with an unknown key ({key_id!r})")
        return found

    def _get(self, key_id: str | None) -> Key | None:
        if key_id is not None:
            return self._keys.get(key_id)
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    def _begin(self, now: float, age_s: float) -> bool:
        """Begin a fetch if the keys are at least this old and none is in progress."""
        fetched_at = self._fetched_at
        is_due = fetched_at is None or now - fetched_at >= age_s
        if not is_due or now < self._next_at or self._fetching_since is not None:
            return False
        self._fetching_since = now
        return True

    def _refresh(self) -> None:
        """Fetch the keys. The former ones stay if that fails."""
        keys: dict[str, Key] | None = None
        try:
            keys = parse_keys(self._fetch(self._url))
        except (OSError, ValueError) as error:
            _logger.warning("cannot fetch the keys of OAuth tokens from %s: %s", self._url, error)
        finally:
            with self._changed:
                now = self._monotonic()
                if keys is None:
                    self._next_at = now + self._retry_s
                    self._retry_s = min(self._retry_s * 2, self._times.retry_s_max)
                else:
                    self._keys = keys
                    self._fetched_at = now
                    self._retry_s = self._times.retry_s
                self._fetching_since = None
                self._changed.notify_all()


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="oauth-keys", daemon=True).start()


def parse_keys(data: bytes) -> dict[str, Key]:
    """Return the keys of a key set by id. Raises ValueError if it is no key set.

    Keys of other types and for other uses are left out."""
    found = json.loads(data)
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is not a JSON Web Key Set")  # noqa: TRY004
    keys: dict[str, Key] = {}
    for entry in entries[:_KEYS_MAX]:
        key = _key(entry)
        if key is not None:
            keys[str(entry.get("kid") or key.thumbprint())] = key
    return keys


def _key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in entry.items() if name not in ("d", "key_ops")}
    try:
        match entry.get("kty"):
            case "RSA":
                if len(str(entry.get("n", ""))) * 6 < _RSA_BITS_MIN:
                    return None
                return RSAKey.import_key(public)
            case "EC":
                return ECKey.import_key(public)
    except (JoseError, ValueError, TypeError) as error:
        _logger.warning("a key of the OAuth key set is left out: %s", error)
    return None


def fetch_keys(url: str) -> bytes:
    """Read a key set from a file, http or https URL. Raises OSError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).read_bytes()
    request = urllib.request.Request(  # noqa: S310  # the settings allow http, https and file
        url, headers={"Accept": "application/json"}
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=_FETCH_S_MAX) as response:
            data: bytes = response.read(_RESPONSE_BYTES_MAX)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"HTTP status {error.code}") from None
    except http.client.HTTPException as error:
        raise OSError(f"the endpoint does not speak HTTP: {error!r}") from error
    return data


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: only the URL of the settings is trusted."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
