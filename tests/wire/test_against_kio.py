"""Compares encodings with kio, which is generated from Kafka's definitions, in every version.

kio only gets values made here: it encodes them, and decodes Millstream's encoding of them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import re
import typing
import uuid
from collections.abc import Callable
from importlib import import_module
from types import UnionType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from millstream.wire.field import Fixed, Spec, Struct, specs_of
from millstream.wire.schema import Message, Versioned, codec

IS_OF_KAFKA = True

quick = settings(
    max_examples=5,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_UUID = bytes(16)
_error_codes = st.sampled_from([int(code) for code in KioErrorCode])
_durations = st.integers(0, 10**6)
_timestamps = st.integers(-1, 4 * 10**9).map(lambda seconds: seconds * 1000 if seconds > 0 else -1)

_times = st.integers(0, 4 * 10**9).map(lambda seconds: seconds * 1000)


def _within_kio(name: str, spec: Spec) -> st.SearchStrategy[Any] | None:
    """Return a strategy for integers that kio converts to narrower types; None for other fields."""
    if not isinstance(spec.kind, Fixed):
        return None
    if name.endswith("error_code"):
        return _error_codes
    if name.startswith(("issue_timestamp", "expiry_timestamp", "max_timestamp")):
        # Delegation tokens always have these times.
        return _times
    if "timestamp" in name or name == "log_append_time_ms":
        return _timestamps
    return _durations if name.endswith("_ms") else None


def _to_kio(message: Any, shape: type, version: int) -> Any:
    """Return the message as an instance of kio's class, which has its fields in the same order."""
    ours = [(name, spec) for name, spec in specs_of(type(message)) if spec.is_in(version)]
    hints = typing.get_type_hints(shape)
    theirs = dataclasses.fields(shape)
    assert len(ours) == len(theirs), f"{shape.__qualname__} has other fields than ours"
    arguments = {}
    for (name, spec), field in zip(ours, theirs, strict=True):
        value = getattr(message, name)
        is_absent = isinstance(spec.kind, Struct) and spec.tag is not None and value is None
        if not is_absent:
            kind = field.metadata.get("kafka_type")
            arguments[field.name] = _value_to_kio(value, hints[field.name], kind, version)
    return shape(**arguments)


def _value_to_kio(value: Any, hint: Any, kafka_type: str | None, version: int) -> Any:
    if isinstance(value, list):
        return tuple(_value_to_kio(each, hint, kafka_type, version) for each in value)
    if dataclasses.is_dataclass(value):
        return _to_kio(value, _entity_in(hint), version)
    match kafka_type:
        case "uuid":
            return None if value == _NO_UUID else uuid.UUID(bytes=value)
        case "error_code":
            return KioErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else _EPOCH + dt.timedelta(milliseconds=value)
    return value


def _entity_in(hint: Any) -> type:
    """Return the dataclass in `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    candidates = typing.get_args(hint)
    for each in candidates:
        if isinstance(each, UnionType) or typing.get_args(each) or dataclasses.is_dataclass(each):
            return _entity_in(each)
    raise AssertionError(f"no entity in {hint}")


def _kio_shape_of(shape: type[Versioned], version: int) -> Any:
    if issubclass(shape, Message):
        is_request = shape.__name__.endswith("Request")
        load = load_request_schema if is_request else load_response_schema
        return load(shape.api_key, version)
    name = re.sub("(?<!^)(?=[A-Z])", "_", shape.__name__).lower()
    return getattr(import_module(f"kio.schema.{name}.v{version}.data"), shape.__name__)


@quick
@given(data=st.data())
def test_the_encoding_equals_that_of_kio(
    shape: type[Versioned],
    version: int,
    message_values: Callable[..., st.SearchStrategy[Any]],
    data: st.DataObject,
) -> None:
    kio_shape = _kio_shape_of(shape, version)
    message = data.draw(message_values(shape, version, _within_kio))
    kio_message = _to_kio(message, kio_shape, version)
    theirs = io.BytesIO()
    entity_writer(kio_shape)(theirs, kio_message)
    ours = b"".join(codec(shape, version).encode(message))
    assert ours == theirs.getvalue()
    assert codec(shape, version).decode(theirs.getvalue()) == message
    decoded, size = entity_reader(kio_shape)(ours, 0)
    assert (decoded, size) == (kio_message, len(ours))
