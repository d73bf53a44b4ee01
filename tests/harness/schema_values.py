"""Values for any message, struct or versioned data, built from its schema."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import ne
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from millstream.wire.field import Array, Bytes, Fixed, Kind, Spec, String, Struct, specs_of

Override = Callable[[str, Spec], SearchStrategy[Any] | None]

_FIXED: dict[str, SearchStrategy[Any]] = {
    "b": st.integers(-(2**7), 2**7 - 1),
    "h": st.integers(-(2**15), 2**15 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
    "H": st.integers(0, 2**16 - 1),
    "I": st.integers(0, 2**32 - 1),
    "d": st.floats(allow_nan=False),
    "?": st.booleans(),
    "16s": st.binary(min_size=16, max_size=16),
}
#: Mostly short texts; some need a two-byte length in the compact encoding.
_TEXT = st.one_of(st.text(max_size=8), st.integers(120, 140).map(lambda size: "x" * size))
_BYTES = st.one_of(st.binary(max_size=8), st.integers(120, 140).map(bytes))


def _no_override(_name: str, _spec: Spec) -> None:
    return None


def values_of(shape: type, version: int, override: Override = _no_override) -> SearchStrategy[Any]:
    """Generate instances that `version` can encode; fields that it lacks keep their defaults."""
    fields = {}
    for name, spec in specs_of(shape):
        if spec.is_in(version):
            strategy = override(name, spec)
            if strategy is None:
                strategy = _values(spec.kind, version, override)
            if isinstance(spec.kind, Struct) and spec.tag is not None:
                # Others omit such a struct if it equals its default; Millstream writes it.
                strategy = strategy.filter(partial(ne, spec.kind.shape()))
            if spec.is_nullable(version) if spec.tag is None else spec.default is None:
                strategy = st.one_of(st.none(), strategy)
            fields[name] = strategy
    return st.builds(shape, **fields)


def _values(kind: Kind, version: int, override: Override) -> SearchStrategy[Any]:
    match kind:
        case Fixed(letter, _):
            return _FIXED[letter]
        case String():
            return _TEXT
        case Bytes():
            return _BYTES
        case Array(element):
            return st.lists(_values(element, version, override), max_size=2)
        case Struct(shape):
            return values_of(shape, version, override)


def full_message_of(shape: type, version: int) -> Any:
    """Return an instance with a value in every field: no null, empty array or default."""
    fields = {}
    for name, spec in specs_of(shape):
        if spec.is_in(version):
            fields[name] = _full_value(spec.kind, version)
    return shape(**fields)


def _full_value(kind: Kind, version: int) -> Any:
    match kind:
        case Fixed("?", _):
            return True
        case Fixed("16s", _):
            return bytes(range(16))
        case Fixed(_, size):
            return int.from_bytes(bytes(range(1, size + 1)))
        case String():
            return "słowo"
        case Bytes():
            return b"some bytes"
        case Array(element):
            return [_full_value(element, version), _full_value(element, version)]
        case Struct(shape):
            return full_message_of(shape, version)
