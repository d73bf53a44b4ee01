"""What can go wrong between Spark and the brokers. Each is a sentence for a person."""

from __future__ import annotations


class SparkSourceError(Exception):
    """Base of what the source and the sink raise on purpose."""


class OptionError(SparkSourceError, ValueError):
    """An option is unknown, malformed, or contradicts another; the text names it."""


class UnknownTopic(OptionError):  # noqa: N818 - what the option names
    """A topic that is to be read or written does not exist."""


class Unavailable(SparkSourceError):  # noqa: N818 - names a state of the cluster
    """The brokers did not do something within the time allowed."""


class ConnectionLost(SparkSourceError):  # noqa: N818 - what happened to the connection
    """One connection broke, or could not be made. Whoever can, tries another."""


class DataLoss(SparkSourceError):  # noqa: N818 - what happened to the data
    """Records that a query was to read are not there any more."""
