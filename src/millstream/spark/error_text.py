"""Extract the sentence for the user from Spark's error messages. Pure.

Spark wraps errors in stack traces, query state and query plans.
"""

from __future__ import annotations

import re
from typing import Final

_MILLSTREAM_ERROR: Final = re.compile(r"^millstream\.(?:\w+\.)*(\w+): ")
_SQL_STATE: Final = re.compile(r" ?SQLSTATE: \w+")
_HEAD: Final = re.compile(r"^(?:Failed to resolve flow: \S+|Flow \S+ has FAILED\.)\s+Error: ")
_SQL_POSITION: Final = re.compile(r"\.?; (line \d+ pos \d+)$")


def error_sentence(message: str) -> str:
    """Return the sentence of an error message of Spark."""
    return parse_error(message)[1]


def parse_error(message: str) -> tuple[str, str]:
    """Return the class name if it is an error of Millstream, else "", and the sentence."""
    sentence = _unwrap(message)
    ours = _MILLSTREAM_ERROR.match(sentence)
    return (ours[1], sentence[ours.end() :]) if ours else ("", sentence)


def _unwrap(message: str) -> str:
    text = message
    # The query state, the JVM stack trace and the query plan start at these marks.
    for mark in ("\n=== Streaming Query ===", "\n\nJVM stacktrace:", ";\n'", "\n\n== SQL"):
        text = text.partition(mark)[0]
    text = (
        _HEAD.sub("", _SQL_STATE.sub("", text)).rpartition("terminated with exception: ")[2].strip()
    )
    _, traceback, frames = text.rpartition("Traceback (most recent call last):")
    lines = (frames if traceback else text).splitlines()
    sentences = [
        each.strip() for each in lines if each.strip() and not each.startswith((" ", "\t"))
    ]
    line = (sentences[-1] if traceback else " ".join(sentences)) if sentences else text
    return _SQL_POSITION.sub(r" (\1)", line)
