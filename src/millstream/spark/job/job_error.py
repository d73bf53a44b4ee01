"""How a job fails: one exception with a kind that the command line turns into an exit code."""

from __future__ import annotations

from enum import Enum, auto


class Failure(Enum):
    #: The call can't work as it was made.
    USAGE = auto()
    #: No such topic, partition, archive or table.
    NOT_FOUND = auto()
    #: The brokers did not answer.
    NO_CONNECTION = auto()
    #: Records that should be there are not, and the job was not told to go on without them.
    DATA_LOSS = auto()
    #: Another run works on the same state.
    CONFLICT = auto()
    FAILED = auto()


class JobError(Exception):
    """The message is a sentence: what is wrong, where, and what to do."""

    def __init__(self, kind: Failure, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def usage_error(message: str) -> JobError:
    return JobError(Failure.USAGE, message)
