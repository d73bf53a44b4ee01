"""Python imports this module at its start if its folder is on PYTHONPATH: see `step_hook`."""

from __future__ import annotations

import os

from spark.sink.step_hook import FOLDER_VARIABLE, hook_on_import

if FOLDER_VARIABLE in os.environ:
    hook_on_import()
