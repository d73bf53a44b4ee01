"""Check the pinned requirements for known vulnerabilities with pip-audit, for `make lint`.

The check needs the vulnerability service of PyPI. Where it cannot be reached, as on a machine
without internet, the script says so and succeeds. Everything that pip-audit finds is a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
REQUIREMENTS: Final = ("runtime.txt", "dev.txt")
#: What pip-audit asks for each package. The answer has the key `vulnerabilities`.
SERVICE: Final = "https://pypi.org/pypi/pip/23.2.1/json"
REACH_S_MAX: Final = 5.0
AUDIT_S_MAX: Final = 300.0


def unreachable(url: str = SERVICE, wait_s_max: float = REACH_S_MAX) -> str | None:
    """Return why the vulnerability service cannot be used; None if it can."""
    try:
        with urllib.request.urlopen(url, timeout=wait_s_max) as response:
            found = json.loads(response.read())
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return str(reason) or type(error).__name__
    if not isinstance(found, dict) or "vulnerabilities" not in found:
        return "its response has no vulnerabilities"
    return None


def command(requirements: Path) -> list[str]:
    """Return the command that checks one file of pinned requirements, without installing them."""
    return [
        *(sys.executable, "-m", "pip_audit", "--requirement", str(requirements)),
        *("--require-hashes", "--disable-pip", "--progress-spinner", "off", "--timeout", "15"),
    ]


def main() -> int:
    reason = unreachable()
    if reason is not None:
        print(f"pip-audit: not run, because {SERVICE} cannot be used: {reason}")
        return 0
    failed = 0
    for name in REQUIREMENTS:
        path = REPOSITORY / "requirements" / name
        try:
            done = subprocess.run(command(path), timeout=AUDIT_S_MAX, check=False)
        except subprocess.TimeoutExpired:
            print(f"pip-audit: no result for {name} after {AUDIT_S_MAX:g} s")
            failed = 1
            continue
        failed = failed or done.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
