"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """The states of a check, from good to bad; a skipped check does not apply."""

    SKIPPED = "skipped"
    HEALTHY = "healthy"
    WARNING = "warning"
    UNHEALTHY = "unhealthy"


class CheckScope(StrEnum):
    """What a check looks at."""

    HOST = "host"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. Findings that are not healthy have an advice."""

    scope: CheckScope
    check: str
    state: CheckState
    #: What was found, without a period.
    found: str
    #: What to do, as a sentence.
    advice: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        return {
            "scope": self.scope.value,
            "check": self.check,
            "state": self.state.value,
            "found": self.found,
            "advice": self.advice,
        }
