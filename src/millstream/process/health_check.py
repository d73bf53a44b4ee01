"""A health check without curl: `python -m millstream.process.health_check http://HOST:PORT/readyz`.

Prints the response. Exits with 0 if its status is 200, and with 1 otherwise, as container runtimes
expect of a health check.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Final

_TIMEOUT_S: Final = 3.0


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m millstream.process.health_check URL\n")
        return 2
    (url,) = arguments
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310
            sys.stdout.write(response.read().decode())
            return 0 if response.status == 200 else 1
    except urllib.error.HTTPError as error:
        with error:
            sys.stdout.write(error.read().decode())
    except OSError as error:
        sys.stdout.write(f"no response from {url}: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
