"""The supervisor of a simulated broker's tasks, and the errors that the simulator injects."""

from __future__ import annotations

from harness.in_process.fault_supervisor import FaultSupervisor
from sim.loop import VirtualLoop


class InjectedError(Exception):
    """An error that the simulator injects into callbacks and tasks."""


class SimSupervisor(FaultSupervisor):
    """Notes injected failures in the trace. Any other failure is a violation."""

    __slots__ = ("_loop", "_name")

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        super().__init__()
        self._loop = loop
        self._name = name

    def _count(self, name: str, error: Exception) -> None:
        super()._count(name, error)
        if isinstance(error, InjectedError):
            self._loop.note(f"{name} of {self._name} raised")
        else:
            self._loop.errors.append(f"{name} of {self._name} raised {error!r}")
