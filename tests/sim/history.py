"""The history of one run: what its clients did and saw.

Clients record operations during a run, and `harness.checker` searches them for anomalies. The
history itself checks that a group's committed offset never moves back. It also collects violations
that clients report at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.checker import check
from harness.history import Operation, Outcome, Send, Step

_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Pending:
    """An operation in progress. The outcome of its sends is unknown."""

    process: str
    number: int
    begin_ns: int
    planned: list[Send]


@dataclass(slots=True)
class _Commit:
    at_s: float
    offset: int


@dataclass(slots=True)
class History:
    """The operations of one run, recorded by its clients."""

    #: Returns virtual time.
    time: Callable[[], float]
    operations: list[Operation] = field(default_factory=list)
    #: Violations reported during the run.
    violations: list[str] = field(default_factory=list)
    acknowledged: int = 0
    _begun: int = 0
    _pending: dict[int, Pending] = field(default_factory=dict)
    #: Acknowledged commits by group and partition, in order of acknowledgement.
    _commits: dict[tuple[str, int], list[_Commit]] = field(default_factory=dict)

    def violated(self, what: str) -> None:
        self.violations.append(what)

    def begin(self, process: str, planned: Sequence[Send] = ()) -> Pending:
        """Record the start of an operation; `planned` is everything that it may send."""
        self._begun += 1
        pending = Pending(process, self._begun, self._now_ns(), list(planned))
        self._pending[pending.number] = pending
        return pending

    def end(self, pending: Pending, outcome: Outcome, steps: Sequence[Step]) -> None:
        del self._pending[pending.number]
        self.operations.append(
            Operation(
                pending.process,
                pending.number,
                outcome,
                pending.begin_ns,
                self._now_ns(),
                list(steps),
            )
        )
        if outcome is Outcome.OK:
            self.acknowledged += sum(isinstance(step, Send) for step in steps)

    def _now_ns(self) -> int:
        return round(self.time() * _NS_PER_S)

    # Committed offsets

    def committed(self, group: str, partition: int, offset: int) -> None:
        """Record that a group's offset commit was acknowledged."""
        self._commits.setdefault((group, partition), []).append(_Commit(self.time(), offset))

    def check_fetched(
        self, who: str, group: str, partition: int, offset: int, since_s: float
    ) -> None:
        """Check a fetched offset against all commits that were acknowledged before `since_s`."""
        commits = self._commits.get((group, partition), ())
        known = max((each.offset for each in commits if each.at_s < since_s), default=-1)
        if offset < known:
            self.violated(
                f"{who} fetched offset {offset} of group {group} in partition {partition}, "
                f"after {known} was committed"
            )

    def check(self) -> list[str]:
        """Return all violations of the run."""
        unknown = [
            Operation(each.process, each.number, Outcome.INFO, each.begin_ns, None, [*each.planned])
            for each in self._pending.values()
        ]
        return self.violations + [str(found) for found in check(self.operations + unknown)]
