"""A health check without curl: `python -m millstream.process.health_check URL [TOKEN-FILE]`.

Prints the response. Exits with 0 if its status is 200, and with 1 otherwise, as container platforms
expect of a health check. They run it every few seconds, so it imports only the standard library.

It reads variables of the broker that runs in the same container:

    MILLSTREAM_HTTP_BEARER_TOKEN_FILE, MILLSTREAM_HTTP_BEARER_TOKEN
                                             the token, if no TOKEN-FILE is given
    MILLSTREAM_HTTP_SSL_KEYSTORE_LOCATION    if it is set, the server speaks HTTPS

To a check without a token, a broker that needs one serves only `/healthz`. Such a broker is healthy
if that page has status 200.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_TIMEOUT_S: Final = 3.0
_UNAUTHORIZED: Final = 401
_ALIVE: Final = "/healthz"


class Response(NamedTuple):
    """A response of the broker. The status is 0 if there was none."""

    status: int
    text: str


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Check the URL, with the token in the file; return the exit code."""
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python -m millstream.process.health_check URL [TOKEN-FILE]\n")
        return 2
    try:
        token = _token(arguments[1:], environment)
    except OSError as error:
        sys.stderr.write(f"{error.filename} cannot be read: {error.strerror}\n")
        return 1
    url = urlsplit(arguments[0])
    if environment.get("MILLSTREAM_HTTP_SSL_KEYSTORE_LOCATION"):
        url = url._replace(scheme="https")
    response = _get(url.geturl(), token)
    if response.status == _UNAUTHORIZED and token is None:
        response = _get(url._replace(path=_ALIVE).geturl(), None)
    sys.stdout.write(response.text)
    return 0 if response.status == 200 else 1


def _token(files: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the token, or None if none is configured. Raises OSError."""
    file = files[0] if files else environment.get("MILLSTREAM_HTTP_BEARER_TOKEN_FILE")
    if file:
        return Path(file).read_text().strip()
    return environment.get("MILLSTREAM_HTTP_BEARER_TOKEN")


def _get(url: str, token: str | None) -> Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    # The certificate is for the names that clients use, and the check asks its own container.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=_TIMEOUT_S, context=context
        ) as response:
            return Response(response.status, response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Response(error.code, error.read().decode())
    except OSError as error:
        return Response(0, f"no response from {url}: {error}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
