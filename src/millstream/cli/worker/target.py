"""Finds the worker that a command line names: `app.jobs:worker`."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from millstream.cli.support.failure import CommandError, ExitCode

if TYPE_CHECKING:
    from millstream.client.worker import Worker


def load_worker(target: str) -> Worker:
    """Import the module and return its worker. The working directory is importable."""
    module_name, colon, attribute = target.partition(":")
    if not module_name or (colon and not attribute):
        raise CommandError(
            ExitCode.USAGE, f"{target!r} is not MODULE:WORKER, for example app.jobs:worker."
        )
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _module(module_name, folder)
    return _worker(module, attribute or "worker")


def _module(name: str, folder: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            # The module exists and imports another one that does not.
            raise
        raise CommandError(
            ExitCode.NOT_FOUND,
            f"module {name!r} was not found ({error.name!r} is missing): run the command in the"
            f" directory that contains it (now {folder}), or install the package.",
        ) from None


def _worker(module: ModuleType, attribute: str) -> Worker:
    from millstream.client.worker import Worker

    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Worker):
        return found
    names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    known = f"its workers are {', '.join(names)}" if names else "it has no Worker"
    if found is None:
        what = f"module {module.__name__!r} has no {attribute!r}"
    else:
        what = f"{module.__name__}:{attribute} is a {type(found).__name__}, not a Worker"
    raise CommandError(
        ExitCode.USAGE,
        f"{what}; {known}. Name one as MODULE:WORKER, for example"
        f" {module.__name__}:{names[0] if names else 'worker'}.",
    )
