"""Extract the sentence for the user from Spark's error messages. Pure.

Spark wraps errors in stack traces, query state and query plans.
"""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^millstream\.(?:\w+\.)*(\w+): ")
_STATE: Final = re.compile(r" ?SQLSTATE: \w+")
_HEAD: Final = re.compile(r"^(?:Failed to resolve flow: \S+|Flow \S+ has FAILED\.)\s+Error: ")
_PLACE: Final = re.compile(r"\.?; (line \d+ pos \d+)$")


def error_sentence(message: str) -> str:
    """What a person has to know of an error of Spark, which wraps it in stacks and plans."""
    return parse_error(message)[1]


def parse_error(message: str) -> tuple[str, str]:
    """The class of an error, where it is one of Millstream's, and what a person has to know."""
    told = _unwrapped(message)
    ours = _OURS.match(told)
    return (ours[1], told[ours.end() :]) if ours else ("", told)


def _unwrapped(message: str) -> str:
    text = message
    # Where the query's state, the JVM's stack and the query's plan begin.
    for mark in ("\n=== Streaming Query ===", "\n\nJVM stacktrace:", ";\n'", "\n\n== SQL"):
        text = text.partition(mark)[0]
    text = _HEAD.sub("", _STATE.sub("", text)).rpartition("terminated with exception: ")[2].strip()
    _, traceback, frames = text.rpartition("Traceback (most recent call last):")
    lines = (frames if traceback else text).splitlines()
    told = [each.strip() for each in lines if each.strip() and not each.startswith((" ", "\t"))]
    line = (told[-1] if traceback else " ".join(told)) if told else text
    return _PLACE.sub(r" (\1)", line)
