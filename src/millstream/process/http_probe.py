"""A health check for container platforms that cannot send a token: `python -m` with a URL.

    python -m millstream.process.http_probe http://127.0.0.1:9644/readyz /etc/token

Exits with 0 if the page returns status 200, else with 1. It imports only the standard library, as
it runs every few seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from millstream.process.readiness import responds


def main(arguments: Sequence[str]) -> int:
    """Check the URL with the token in the file; return the exit code."""
    url, token_file = arguments
    try:
        token = Path(token_file).read_text().strip()
    except OSError as error:
        sys.stderr.write(f"{token_file} cannot be read: {error}\n")
        return 1
    return 0 if responds(url, token) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
