"""The exception of jobs. Its kind determines the exit code of the command."""

from __future__ import annotations

from enum import Enum, auto

from millstream.model.error import MillstreamError


class Failure(Enum):
    """The kind of a job's failure."""

    #: An argument is wrong.
    USAGE = auto()
    #: A topic, partition, archive or table does not exist.
    NOT_FOUND = auto()
    #: No broker responded.
    NO_CONNECTION = auto()
    #: Records are missing, and the job may not continue without them.
    DATA_LOSS = auto()
    #: Another run works on the same folder.
    CONFLICT = auto()
    FAILED = auto()


class JobError(MillstreamError):
    """A job failed. The message says what is wrong, where, and what to do."""

    def __init__(self, kind: Failure, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def usage_error(message: str) -> JobError:
    return JobError(Failure.USAGE, message)
