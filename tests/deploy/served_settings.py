"""The settings in force of a broker that is started with given variables and a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def served_settings(variables: Mapping[str, str], *arguments: str) -> dict[str, str | None]:
    """Return the values by name, as `millstream serve --check` shows them.

    Fails the calling test, with the broker's error, if the broker rejects a setting."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")
    }
    command = [sys.executable, "-m", "millstream.cli.main", "serve", "--check", "--json"]
    result = subprocess.run(
        [*command, *arguments], env={**inherited, **variables}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    rows: dict[str, dict[str, Any]] = json.loads(result.stdout)
    return {name: row["value"] for name, row in rows.items()}
