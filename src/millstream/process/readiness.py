"""Checks whether a server is up, and waits for it."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Final

_CHECK_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.01


def listens(host: str, port: int) -> bool:
    """Whether a server accepts connections at this address."""
    try:
        socket.create_connection((host, port), timeout=_CHECK_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def responds(url: str, token: str | None = None) -> bool:
    """Whether an HTTP GET of `url`, with a bearer token, returns status 200."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_CHECK_TIMEOUT_S) as response:  # noqa: S310
            return bool(response.status == 200)
    except OSError:
        return False


def wait_until(condition: Callable[[], object], what: str, seconds_max: float = 60.0) -> float:
    """Poll `condition` until it holds; return the seconds waited.

    Raises TimeoutError, which names `what`, after `seconds_max`."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds_max:
            raise TimeoutError(f"waited {seconds_max:g} s for {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - begin
