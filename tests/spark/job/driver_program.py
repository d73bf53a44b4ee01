"""Runs a job in a separate process that kills itself at a step: `driver_program.py JSON`.

The JSON object has `job` (its function), `arguments`, `options`, `settings`, and `at`, the step.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from millstream.spark import job
from millstream.spark.job import Step
from millstream.spark.session import spark_session

#: Settings for a fast start of Spark.
_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
_SETTINGS = {"archive": job.ArchiveOptions, "replay": job.ReplayOptions}


def main() -> None:
    order = json.loads(sys.argv[1])

    def die(step: Step) -> None:
        if step.what == order["at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    options = dict(order["options"])
    if order["job"] in _SETTINGS:
        options["settings"] = _SETTINGS[order["job"]](**order["settings"])
    spark = spark_session("killed", master="local[2]", config=_CONFIG)
    getattr(job, order["job"])(*order["arguments"], progress=die, spark=spark, **options)


if __name__ == "__main__":
    main()
