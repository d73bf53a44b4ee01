"""The errors for arguments that `send` and `write` do not take. Pure.

These methods accept the likely wrong arguments, and raise only if there are some. Type checkers
reject the arguments by their types, and `documented` hides them from `help()`. `send` of a producer
accepts no other unknown keywords: a dictionary for them would cost time for each record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from millstream.client.error import UsageError
from millstream.client.old_name import reject_unknown

Function = TypeVar("Function", bound=Callable[..., Any])

_HIDDEN: Final = ("extra", "unknown", "acks")


def documented(function: Function) -> Function:
    """Decorator: hide `extra`, `unknown` and `acks` from the signature that `help()` shows."""
    signature = inspect.signature(function)
    shown = [each for name, each in signature.parameters.items() if name not in _HIDDEN]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def reject_arguments(
    method: Callable[..., Any], extra: Sequence[object], unknown: Mapping[str, object]
) -> None:
    """Raise a UsageError for arguments that a documented method does not take."""
    parameters = [
        each for each in inspect.signature(method).parameters.values() if each.name != "self"
    ]
    name = method.__name__
    if extra:
        by_position = ", ".join(
            each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        raise UsageError(
            f"{name}() takes {' and '.join(by_position.rsplit(', ', 1))} by position, and also got "
            f"{extra[0]!r}: pass the key by keyword, {name}({by_position}, key=...)."
        )
    if "acks" in unknown:
        raise UsageError(
            f"{name}() has no option 'acks': acks is a setting of the producer, Producer(acks=...)."
            " Create one producer for each value."
        )
    reject_unknown(unknown, [each.name for each in parameters])
