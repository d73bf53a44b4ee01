"""Hides secrets in what a Spark Connect server shows of queries.

A classic session shows few options, and Spark hides those whose names say that they are secrets. A
Spark Connect server shows the requests of its clients as texts, with every option: on the pages of
jobs, stages and sessions, and in the event log. There, Spark replaces only what matches a regular
expression of the session.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

_KEY: Final = "spark.sql.redaction.string.regex"
#: An option of a request with its value, as Protocol Buffers print it. Brackets are around some
#: letters because Spark hides settings with those words in their value, this one too.
_OPTION: Final = (
    r'(?i:"kafka\.[^"]*(?:pass[w]ord|pass[p]hrase|sec[r]et|jaas\.config)")'
    r'\s+value: "(?:[^"\\]|\\.)*"'
)
#: The values of a setting that is not set, and of one that Spark hides.
_UNSET: Final = "<undefined>"
_HIDDEN: Final = "(redacted)"


def hide_secrets(session: SparkSession) -> None:
    """Hide passwords and other secrets of `kafka.*` options on the pages and in the event log of a
    Spark Connect server.

    Call it before the first query of a Spark Connect session. What the session hides already stays
    hidden. Jobs and pipelines do this by themselves.
    """
    (row,) = session.sql(f"SET {_KEY}").collect()
    present: str = row.value
    if present.endswith(_HIDDEN):
        _logger.warning("Spark does not show its setting %s: add this to it: %s", _KEY, _OPTION)
    elif present in ("", _UNSET):
        session.conf.set(_KEY, _OPTION)
    elif _OPTION not in present:
        session.conf.set(_KEY, f"{present}|{_OPTION}")


def is_remote(session: SparkSession) -> bool:
    """Return whether this is a session of a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect")
