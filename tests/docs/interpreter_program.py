"""Runs blocks of Python that arrive on standard input, one JSON object a line.

`page` starts a new page: an empty namespace, in the folder `cwd`, with the variables `environment`.
`code` is run in the namespace of its page. A line with `END` and the outcome follows its output:
nothing, `interrupted`, or `failed` after a traceback. One process runs the blocks of all pages, so
that Millstream is imported once, and Spark is started once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

END = "---- end of block ----"


def run(code: str, name: str, namespace: dict[str, Any]) -> str:
    try:
        exec(compile(code, name, "exec"), namespace)
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException:  # noqa: BLE001 -- reported to the test
        traceback.print_exc(file=sys.stdout)
        return "failed"
    return ""


def main() -> None:
    namespace: dict[str, Any] = {}
    for line in sys.stdin:
        message = json.loads(line)
        if "page" in message:
            namespace = {"__name__": "__main__"}
            os.chdir(message["cwd"])
            os.environ.update(message["environment"])
            sys.path[0] = message["cwd"]
            continue
        outcome = run(message["code"], message["name"], namespace)
        sys.stdout.write(f"\n{END}{outcome}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
