"""Compares encodings with kafka-python's protocol classes, in each version that they have.

kafka-python has its own copy of the definitions. Versions that it lacks are skipped.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millstream.wire.field import INT32, UUID, Array, Struct, specs_of
from millstream.wire.schema import Message, Versioned, codec, decode_prefixed, encode_prefixed

with warnings.catch_warnings():
    # Its import reads the definitions through a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer

_OTHER_NAMES = {"enable_2pc": "enable2_pc"}
_OPERATIONS = "authorized_operations"

quick = settings(
    max_examples=4,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


def _find(name: str) -> Any:
    for package in (admin, consumer, metadata, producer):
        if hasattr(package, name):
            return getattr(package, name)
    return None


def _arguments(message: Any, peer: Any, version: int) -> dict[str, Any]:
    """Return the arguments of kafka-python's constructor, without tagged fields that are
    default."""
    arguments = {}
    for name, spec in specs_of(type(message)):
        value = getattr(message, name)
        if not spec.is_in(version) or (spec.tag is not None and value == spec.default):
            continue
        kind = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if value is not None and isinstance(kind, Struct):
            nested = peer.fields[name].data_class
            if isinstance(value, list):
                value = [_build(each, nested, version) for each in value]
            else:
                value = _build(value, nested, version)
        elif kind == UUID:
            value = uuid.UUID(bytes=value)
        elif kind == INT32 and name.endswith(_OPERATIONS) and _OPERATIONS in peer.fields:
            # kafka-python may have another name for this field, and then a set of bit numbers.
            name, value = _OPERATIONS, {bit for bit in range(32) if value >> bit & 1}
        arguments[_OTHER_NAMES.get(name, name)] = value
    return arguments


def _build(message: Any, peer: Any, version: int) -> Any:
    return peer(version=version, **_arguments(message, peer, version))


@quick
@given(data=st.data())
def test_the_encoding_equals_that_of_kafka_python(
    shape: type[Versioned],
    version: int,
    message_values: Callable[..., st.SearchStrategy[Any]],
    data: st.DataObject,
) -> None:
    peer = _find(shape.__name__)
    if peer is None or version > peer.max_version:
        pytest.skip("kafka-python does not have it")
    message = data.draw(message_values(shape, version))
    theirs = bytes(_build(message, peer, version).encode(version=version))
    if not issubclass(shape, Message):
        assert encode_prefixed(message, version) == theirs
        assert decode_prefixed(shape, theirs) == message
        return
    assert b"".join(codec(shape, version).encode(message)) == theirs
    assert codec(shape, version).decode(theirs) == message
