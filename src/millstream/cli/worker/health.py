"""The pages of `worker run`: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.cli.worker.status_server import Page
from millstream.cli.worker.worker_metrics import worker_page

if TYPE_CHECKING:
    from millstream.cli.worker.supervisor import WorkerSupervisor


def pages(supervisor: WorkerSupervisor) -> dict[str, Callable[[], Page]]:
    """Return the pages by path.

    `/healthz` is 503 while no process runs, or while one does not report. `/readyz` is 503 until
    every process has joined its group, and while the workers drain.
    """

    def health() -> Page:
        problem = supervisor.problem()
        return Page(b"ok\n") if problem is None else _unavailable(problem)

    def ready() -> Page:
        reason = supervisor.reason_not_ready()
        return Page(b"ready\n") if reason is None else _unavailable(f"not ready: {reason}")

    return {
        "/healthz": health,
        "/readyz": ready,
        "/metrics": lambda: worker_page(supervisor),
    }


def _unavailable(reason: str) -> Page:
    return Page(f"{reason}\n".encode(), status=503)
