"""The errors of the blocking protocol client. Each message is a sentence for a person."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of the errors that the protocol client, and what is built on it, raise on purpose."""


class OptionError(ProtocolError, ValueError):
    """An option is unknown, malformed, or contradicts another; the message names it."""


class Unavailable(ProtocolError):  # noqa: N818 - names a state of the cluster
    """The brokers did not complete an operation within the time allowed."""


class ConnectionLost(ProtocolError):  # noqa: N818 - what happened to the connection
    """One connection broke, or could not be made. The caller may try another broker."""
