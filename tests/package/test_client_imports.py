"""The client needs few packages: those of the broker and of the command line are not imported."""

from __future__ import annotations

import json
import subprocess
import sys

#: Imported by the broker or by commands only.
SERVER = {"aiohttp", "click", "cramjam", "fastcrc", "prometheus_client", "rich", "typer", "uvloop"}
PROGRAM = """
import json, sys
import millstream.client
for name in millstream.client.__all__:
    getattr(millstream, name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_the_client_imports_no_package_of_the_server() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    imported = set(json.loads(result.stdout))
    assert "confluent_kafka" in imported
    assert imported & SERVER == set()
