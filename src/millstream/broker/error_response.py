"""Error responses for requests whose handler failed.

Most responses have one error code for the whole request. In some APIs each item of the request (a
topic, a resource) gets a row with an error code. The entry of such an API declares an
`error_response`, which returns the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from millstream.broker.context import Context
from millstream.broker.dispatch import Api
from millstream.model.acl import DENIAL_CODES
from millstream.model.error import ErrorCode
from millstream.wire.field import specs_of
from millstream.wire.schema import Message

T = TypeVar("T")

#: The error message of such a response: the cause is in the log of the broker.
FAILURE_MESSAGE: Final = "the broker failed; see its log"
#: The error message of a request that the client may not make.
DENIAL_MESSAGE: Final = "the client is not authorized"
_DENIALS: Final = frozenset(DENIAL_CODES.values())


def failure_message(code: ErrorCode) -> str:
    """Return the error message of a response that rejects a whole request."""
    return DENIAL_MESSAGE if code in _DENIALS else FAILURE_MESSAGE


def error_response(
    api: Api, request: Message | None, context: Context, code: ErrorCode
) -> Message | None:
    """Return the response that rejects a whole request; None if this version has none."""
    if api.error_response is not None:
        return api.error_response(request, context, code)
    names = {name for name, spec in specs_of(api.response) if spec.is_in(context.version)}
    if "error_code" not in names:
        return None
    make: Callable[..., Message] = api.response
    if "error_message" in names:
        return make(error_code=code, error_message=failure_message(code))
    return make(error_code=code)


def error_rows(
    row: Callable[..., T], items: Iterable[object], copied: Iterable[str], **values: Any
) -> list[T]:
    """Return a row for each item of a request. The fields `copied` have the values of the item, the
    other fields have `values`."""
    names = tuple(copied)
    return [row(**{name: getattr(item, name) for name in names}, **values) for item in items]
