"""Named steps of a sink write, at which tests kill the process or act.

`hook_steps` wraps functions of the sink so that `reach` is called with the name of each step. A
function that no longer exists under its name raises AttributeError, so no step gets lost silently.

    task-begin         a task starts
    task-writing       a task has sent some batches
    task-written       the brokers have acknowledged all batches of a task
    task-prepared      the task's transaction is prepared
    commit-begin       the driver starts to commit a batch
    decision-written   the decision is written; its transaction is still open
    decided            the decision is committed
    between-commits    the driver has sent some EndTxn requests of a batch, not all
    committed          all transactions of the batch are committed
    abort-begin        the driver starts to abort a batch
    between-aborts     as between-commits, while the driver aborts

Python processes of Spark import `hook_path/sitecustomize.py`, which calls `hook_on_import`.
`environment` returns the variables that make them do so.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER_VARIABLE = "SPARK_SINK_FAULTS"
#: This module imports every other module of the sink.
_MODULE = "millstream.spark.sink.topic_writer"
_HERE = Path(__file__).parent

Reach = Callable[[str], None]
Patch = Callable[[Any, str, Any], None]


def environment(folder: Path) -> dict[str, str]:
    """The environment of a Spark driver whose processes are killed at the steps in `folder`."""
    places = [_HERE / "hook_path", _HERE.parent.parent, os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(str(each) for each in places if str(each))
    return {FOLDER_VARIABLE: str(folder), "PYTHONPATH": path}


def kill_at(step: str) -> None:
    """Kill this process if the folder of faults has a file with the name of the step.

    The first process at the step removes the file, kills the processes whose ids are in it, and
    then itself.
    """
    fault = Path(os.environ[FOLDER_VARIABLE], step)
    try:
        taken = fault.rename(fault.with_suffix(f".{os.getpid()}"))
    except FileNotFoundError:
        return
    for pid in taken.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def hook_steps(reach: Reach, patch: Patch = setattr) -> None:
    """Call `reach` at every step of this process from now on. `patch` sets an attribute."""
    from millstream.spark.sink import topic_writer
    from millstream.spark.sink.batch_committer import BatchCommitter
    from millstream.spark.sink.decision_log import DecisionLog

    _hook_tasks(reach, patch)
    _hook_ends(reach, patch)
    _before(BatchCommitter, "commit", lambda: reach("commit-begin"), patch)
    _before(topic_writer, "adopt", lambda: reach("commit-begin"), patch)
    _after(DecisionLog, "_commit_offset", lambda _: reach("decision-written"), patch)
    _after(DecisionLog, "decide", lambda _: reach("decided"), patch)
    _before(BatchCommitter, "_abort_leftovers", lambda: reach("committed"), patch)
    _before(BatchCommitter, "abort", lambda: reach("abort-begin"), patch)


def _hook_tasks(reach: Reach, patch: Patch) -> None:
    from millstream.spark.sink import write_task

    class HookedProducer(write_task.TaskProducer):
        """The decision log has a producer too, which reaches no step of a task."""

    _after(HookedProducer, "send", lambda _: reach("task-writing"), setattr)
    _after(HookedProducer, "flush", lambda _: reach("task-written"), setattr)
    patch(write_task, "TaskProducer", HookedProducer)
    _before(write_task.WriteTask, "write", lambda: reach("task-begin"), patch)

    def prepared(message: write_task.TaskMessage) -> None:
        if message.prepared is not None:
            reach("task-prepared")

    _after(write_task.WriteTask, "write", prepared, patch)


def _hook_ends(reach: Reach, patch: Patch) -> None:
    from millstream.spark.sink.transaction_request import TransactionEnder

    send_round, make_request = TransactionEnder._round, TransactionEnder._request
    sent = 0

    def hooked_round(ender: TransactionEnder, transactions: list[Any]) -> Any:
        nonlocal sent
        sent = 0
        return send_round(ender, transactions)

    def hooked_request(ender: TransactionEnder, transaction: Any) -> Any:
        nonlocal sent
        if sent:
            reach("between-commits" if ender._is_commit else "between-aborts")
        sent += 1
        return make_request(ender, transaction)

    patch(TransactionEnder, "_round", hooked_round)
    patch(TransactionEnder, "_request", hooked_request)


def _before(owner: Any, name: str, action: Callable[[], None], patch: Patch) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def hooked(*arguments: Any, **options: Any) -> Any:
        action()
        return original(*arguments, **options)

    patch(owner, name, hooked)


def _after(owner: Any, name: str, action: Callable[[Any], None], patch: Patch) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def hooked(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        action(result)
        return result

    patch(owner, name, hooked)


def hook_on_import() -> None:
    """Hook the steps once this process imports the sink; most processes never do."""
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            _after(spec.loader, "exec_module", lambda _: hook_steps(kill_at), setattr)
        return spec
