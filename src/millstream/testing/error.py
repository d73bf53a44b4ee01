"""The errors of the broker for tests."""

from __future__ import annotations

from millstream.model.error import MillstreamError


class LocalBrokerError(MillstreamError, RuntimeError):
    """The broker is not in the state that a call needs."""


class MemberNotFoundError(MillstreamError, LookupError):
    """A group has no such member, or one that cannot expire now."""
