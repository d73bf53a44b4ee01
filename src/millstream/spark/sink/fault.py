"""Named steps of a write, at which tests can have it killed.

`SPARK_SINK_FAULTS` names a folder. A file in it with the name of a step makes the process
that reaches this step first take the file away, and then kill the processes whose ids are in it,
and itself. Without the variable a step costs a look into the environment.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "SPARK_SINK_FAULTS"


def reach(step: str) -> None:
    """This process is at the step."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    fault = Path(folder, step)
    try:
        taken = fault.rename(fault.with_suffix(f".{os.getpid()}"))
    except FileNotFoundError:
        return
    for pid in taken.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
