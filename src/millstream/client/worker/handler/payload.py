"""Handlers with typed payloads: the annotation of the first parameter says what a value must be.

    def bill(job)                    the job, with the value as the consumer decodes it
    def bill(job: Job)               the same
    def bill(job: Job[Order])        the job; `job.value` is an Order
    def bill(order: Order)           the Order
    def bill(order: Order, job: Job) both

Types with fields are decoded: pydantic's models and dataclasses by pydantic, msgspec's Structs and
plain dataclasses, TypedDicts and named tuples by msgspec, also in lists, dictionaries and unions.
Bytes are decoded as JSON. A value that the worker's deserializer has decoded is converted. Other
arguments of `Job[...]`, such as `Job[bytes]`, are for type checkers only.

A value that does not validate raises `InvalidPayload`: the message becomes a dead letter without
further attempts.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from millstream.client.error import UsageError
from millstream.client.worker.failure import InvalidPayload
from millstream.client.worker.message.job import Job

#: Makes a value of bytes, or of what a deserializer returned.
Convert: TypeAlias = Callable[[Any], Any]
_PLAIN: Any = (inspect.Parameter.empty, Any, object, Job)


def bound(function: Callable[..., Any], *, is_async: bool) -> Callable[[Job], Any]:
    """Return the function that is called with a job: `function` itself if it takes a plain job."""
    annotations = _annotations(function)
    if not annotations or annotations[0] in _PLAIN:
        return function
    first = annotations[0]
    if typing.get_origin(first) is Job:
        wanted = typing.get_args(first)[0]
        return _typed_job(function, wanted, is_async) if _has_fields(wanted) else function
    if not _has_fields(first):
        raise UsageError(
            f"The handler {_name(function)} takes {_name(first)}: annotate its parameter with Job, "
            "Job[Type] or a type with fields (a pydantic model, msgspec.Struct or dataclass)."
        )
    has_job = len(annotations) > 1
    if has_job and (typing.get_origin(annotations[1]) or annotations[1]) is not Job:
        raise UsageError(
            f"The second parameter of the handler {_name(function)} must be annotated with Job."
        )
    return _payload(function, _converter(first), is_async, has_job=has_job)


def _typed_job(function: Callable[..., Any], wanted: Any, is_async: bool) -> Callable[[Job], Any]:
    convert = _converter(wanted)
    if is_async:

        async def call_async(job: Job) -> Any:
            job.set_value(convert(job.value))
            return await function(job)

        return call_async

    def call(job: Job) -> Any:
        job.set_value(convert(job.value))
        return function(job)

    return call


def _payload(
    function: Callable[..., Any], convert: Convert, is_async: bool, *, has_job: bool
) -> Callable[[Job], Any]:
    if is_async:

        async def call_async(job: Job) -> Any:
            value = convert(job.value)
            return await (function(value, job) if has_job else function(value))

        return call_async

    def call(job: Job) -> Any:
        value = convert(job.value)
        return function(value, job) if has_job else function(value)

    return call


def _converter(wanted: Any) -> Convert:
    """Return the function that makes a `wanted` of a value, or raises InvalidPayload."""
    from_json, from_object, errors = _pydantic(wanted) if _is_pydantic(wanted) else _msgspec(wanted)
    is_class = inspect.isclass(wanted) and not typing.is_typeddict(wanted)

    def convert(value: Any) -> Any:
        if is_class and isinstance(value, wanted):
            return value
        try:
            return from_json(value) if isinstance(value, bytes) else from_object(value)
        except errors as error:
            raise InvalidPayload(f"The value is not a valid {_name(wanted)}: {error}") from error

    return convert


def _pydantic(wanted: Any) -> tuple[Convert, Convert, tuple[type[Exception], ...]]:
    import pydantic

    adapter = pydantic.TypeAdapter(wanted)
    return adapter.validate_json, adapter.validate_python, (pydantic.ValidationError,)


def _msgspec(wanted: Any) -> tuple[Convert, Convert, tuple[type[Exception], ...]]:
    def convert(value: Any) -> Any:
        return msgspec.convert(value, wanted)

    # `MsgspecError` covers malformed JSON and wrong fields.
    return msgspec.json.Decoder(wanted).decode, convert, (msgspec.MsgspecError, UnicodeDecodeError)


def _has_fields(kind: Any) -> bool:
    """Whether the type, or a part of it, has fields."""
    return any(_is_structured(each) for each in _parts(kind))


def _parts(kind: Any) -> list[Any]:
    return [kind, *(part for each in typing.get_args(kind) for part in _parts(each))]


def _is_structured(kind: Any) -> bool:
    if not inspect.isclass(kind):
        return False
    return (
        issubclass(kind, msgspec.Struct)
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or _is_pydantic(kind)
    )


def _is_pydantic(kind: Any) -> bool:
    """Whether pydantic has to validate the type. It is imported if one of its types exists."""
    return "pydantic" in sys.modules and any(
        hasattr(part, "__pydantic_validator__") for part in _parts(kind)
    )


def _annotations(function: Callable[..., Any]) -> list[Any]:
    """Return the annotations of the parameters without a default, or of the first one."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # A builtin, such as `print`.
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [
        each
        for number, each in enumerate(parameters)
        if each.kind in kinds and (number == 0 or each.default is inspect.Parameter.empty)
    ]
    return [_resolved(function, each.annotation) for each in taken]


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return the type of an annotation, which may be text."""
    if not isinstance(annotation, str):
        return annotation
    if annotation.rpartition(".")[2] == "Job":
        return Job
    target = inspect.unwrap(function)
    target = getattr(target, "__func__", target)
    if not hasattr(target, "__globals__"):
        target = getattr(type(target), "__call__", target)  # noqa: B004 -- an object with a method
    try:
        return eval(annotation, getattr(target, "__globals__", {}), _closure(target))  # noqa: S307
    except Exception as error:
        raise UsageError(
            f"The annotation {annotation!r} of the handler {_name(function)} cannot be resolved "
            f"({error}): import or define the type where the handler is defined, not only for type "
            "checkers."
        ) from error


def _closure(function: Any) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _name(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or str(thing)
