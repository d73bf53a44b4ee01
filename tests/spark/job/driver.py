"""A job in a process of its own that kills itself at a step: `driver.py JSON`.

The JSON object has `job` (its function), `arguments`, `options`, `settings`, and the fatal step
with how often it is passed before: `{"at": "written", "after": 1}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import count

from millstream.spark import job
from millstream.spark.job import Step

_SETTINGS = {"archive": job.ArchiveOptions, "replay": job.ReplayOptions}


def main() -> None:
    told = json.loads(sys.argv[1])
    passed = count()

    def die(step: Step) -> None:
        if step.what == told["at"] and next(passed) >= told["after"]:
            os.kill(os.getpid(), signal.SIGKILL)

    options = dict(told["options"])
    if told["job"] in _SETTINGS:
        options["settings"] = _SETTINGS[told["job"]](**told["settings"])
    getattr(job, told["job"])(*told["arguments"], progress=die, master="local[2]", **options)


if __name__ == "__main__":
    main()
