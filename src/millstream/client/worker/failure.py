"""The errors with which a worker ends an attempt on its own."""

from __future__ import annotations

from millstream.client.error import MillstreamError


class DeadlinePassed(MillstreamError, TimeoutError):  # noqa: N818
    """A handler did not return before its visibility deadline."""


class ProcessDied(MillstreamError):  # noqa: N818
    """The worker's process died each time that the message was in progress."""
