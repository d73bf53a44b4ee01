"""The reference of errors: exceptions of the client, exit codes, and codes of the protocol."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError
from scripts.docs.markdown import code, table

import millstream
from millstream.cli.support import failure
from millstream.model.error import ErrorCode

_PACKAGES: Final = Path(__file__).resolve().parents[2] / "src" / "millstream"
#: Packages whose code sends error codes to clients.
_SENDERS: Final = (
    "broker",
    "coordination",
    "groups",
    "log",
    "metadata",
    "records",
    "replication",
    "transactions",
)


def exceptions_page() -> str:
    """Return the client's exceptions with their base classes."""
    public = [getattr(millstream, name) for name in millstream.__all__]
    classes = [
        each
        for each in public
        if isinstance(each, type) and issubclass(each, millstream.MillstreamError)
    ]
    return table(
        ("exception", "derives from", "raised when"),
        (
            (
                code(each.__name__),
                ", ".join(code(base.__name__) for base in each.__bases__),
                str(each.__doc__).partition("\n\n")[0],
            )
            for each in sorted(classes, key=lambda each: (len(each.__mro__), each.__name__))
        ),
    )


def exit_codes_page() -> str:
    """Return the exit codes of the command."""
    rows = re.findall(r"^    (\d+) +(.+)$", str(failure.__doc__), re.MULTILINE)
    return table(("code", "meaning"), rows)


def codes_page() -> str:
    """Return the error codes that the broker sends, with librdkafka's description."""
    sent = _sent_names()
    return table(
        ("code", "name", "meaning"),
        (
            (str(each.value), code(each.name), _meaning(each))
            for each in ErrorCode
            if each.name in sent and each is not ErrorCode.NONE
        ),
    )


def _meaning(error_code: ErrorCode) -> str:
    text = str(KafkaError(error_code.value).str())
    # librdkafka does not know all codes.
    return "" if text.startswith("Err-") else text.removeprefix("Broker: ")


def _sent_names() -> set[str]:
    """Return the names of the error codes that occur in the broker's code."""
    return {
        node.attr
        for package in _SENDERS
        for path in (_PACKAGES / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ErrorCode"
    }
