"""The errors of the blocking protocol client. Each message is a sentence for a person."""

from __future__ import annotations

from millstream.model.error import MillstreamError


class ProtocolError(MillstreamError):
    """Base of the errors that the protocol client and its users raise on purpose."""


class SettingError(ProtocolError, ValueError):
    """A setting is unknown, malformed, or contradicts another; the message names it."""


class Unavailable(ProtocolError):  # noqa: N818 - names a state of the cluster
    """The brokers did not complete an operation before its deadline."""


class ConnectionLost(ProtocolError):  # noqa: N818 - names what happened to the connection
    """A connection broke or could not be established. The caller may try another broker."""
