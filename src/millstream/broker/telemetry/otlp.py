"""Reads the numbers of an OpenTelemetry `MetricsData` message in protobuf. Pure.

Only gauges and sums of numbers are read, with their attributes and those of their resource. Clients
send nothing else. Histograms, summaries, exemplars and unknown fields are skipped. The messages,
with the numbers of the fields read here:

    MetricsData      1 ResourceMetrics*
    ResourceMetrics  1 Resource, 2 ScopeMetrics*
    Resource         1 KeyValue*
    ScopeMetrics     2 Metric*
    Metric           1 name, 5 Gauge, 7 Sum
    Gauge            1 NumberDataPoint*
    Sum              1 NumberDataPoint*, 2 temporality (1 delta, 2 cumulative), 3 is monotonic
    NumberDataPoint  4 as double, 6 as int (sfixed64), 7 KeyValue*, 8 flags (1: no value)
    KeyValue         1 key, 2 AnyValue
    AnyValue         1 text, 2 boolean, 3 int, 4 double

Input is hostile. Every length is checked against the enclosing message, nesting is never deeper
than the table above, and one payload has at most `FIELDS_MAX` fields, which bounds the time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

FIELDS_MAX: Final = 100_000
ATTRIBUTES_MAX: Final = 16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELTA: Final = 1
_NO_RECORDED_VALUE: Final = 1
_VARINT_BYTES_MAX: Final = 10

_DOUBLE: Final = struct.Struct("<d")
_INT64: Final = struct.Struct("<q")

Attributes: TypeAlias = dict[str, str]
#: Number, wire type, and the value of a varint or the start and end of the field's bytes.
_Field: TypeAlias = tuple[int, int, int, int]


class OtlpError(ValueError):
    """Raised for a malformed payload, or one with too many fields or attributes."""


class Point(NamedTuple):
    value: float
    attributes: Attributes


class Metric(NamedTuple):
    """The points of one metric, with the attributes of their resource."""

    name: str
    #: Whether it is a monotonic sum.
    is_counter: bool
    #: Whether values are increments since the last push.
    is_delta: bool
    points: list[Point]


def read_metrics(data: bytes) -> Iterator[Metric]:
    """Yield the metrics; raise OtlpError where the payload is malformed."""
    try:
        yield from _Reader(data).metrics()
    except UnicodeDecodeError as error:
        raise OtlpError(f"a text is not UTF-8: {error}") from error


class _Reader:
    __slots__ = ("_data", "_fields_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields_left = FIELDS_MAX

    def metrics(self) -> Iterator[Metric]:
        for number, kind, start, end in self._fields(0, len(self._data)):
            if number == 1 and kind == _BYTES:
                yield from self._resource_metrics(start, end)

    def _resource_metrics(self, start: int, end: int) -> Iterator[Metric]:
        scopes: list[tuple[int, int]] = []
        attributes: Attributes = {}
        # The resource may follow the metrics that it describes.
        for number, kind, begin, stop in self._fields(start, end):
            if kind == _BYTES and number == 1:
                attributes = self._attributes(begin, stop, 1)
            elif kind == _BYTES and number == 2:
                scopes.append((begin, stop))
        for begin, stop in scopes:
            for number, kind, metric_start, metric_end in self._fields(begin, stop):
                if number == 2 and kind == _BYTES:
                    yield self._metric(metric_start, metric_end, attributes)

    def _metric(self, start: int, end: int, shared: Attributes) -> Metric:
        name = ""
        is_counter = is_delta = False
        points: list[Point] = []
        for number, kind, begin, stop in self._fields(start, end):
            if kind != _BYTES:
                continue
            if number == 1:
                name = self._text(begin, stop)
            elif number in (5, 7):
                points = []
                is_monotonic, temporality = self._points(begin, stop, shared, points)
                # A gauge has neither field; a value that a client sends is ignored.
                is_counter = number == 7 and is_monotonic
                is_delta = number == 7 and temporality == _DELTA
        return Metric(name, is_counter, is_delta, points)

    def _points(
        self, start: int, end: int, shared: Attributes, points: list[Point]
    ) -> tuple[bool, int]:
        """Add the points of a gauge or sum; return whether it is monotonic, and its temporality."""
        is_monotonic, temporality = False, 0
        for number, kind, begin, stop in self._fields(start, end):
            if number == 1 and kind == _BYTES:
                point = self._point(begin, stop, shared)
                if point is not None:
                    points.append(point)
            elif number == 2 and kind == _VARINT:
                temporality = begin
            elif number == 3 and kind == _VARINT:
                is_monotonic = begin != 0
        return is_monotonic, temporality

    def _point(self, start: int, end: int, shared: Attributes) -> Point | None:
        value: float | None = None
        attributes = shared
        flags = 0
        for number, kind, begin, stop in self._fields(start, end):
            if number == 4 and kind == _FIXED64:
                (value,) = _DOUBLE.unpack_from(self._data, begin)
            elif number == 6 and kind == _FIXED64:
                (value,) = _INT64.unpack_from(self._data, begin)
            elif number == 7 and kind == _BYTES:
                if attributes is shared:
                    attributes = dict(shared)
                self._attribute(begin, stop, attributes)
            elif number == 8 and kind == _VARINT:
                flags = begin
        return None if value is None or flags & _NO_RECORDED_VALUE else Point(value, attributes)

    def _attributes(self, start: int, end: int, wanted: int) -> Attributes:
        attributes: Attributes = {}
        for number, kind, begin, stop in self._fields(start, end):
            if number == wanted and kind == _BYTES:
                self._attribute(begin, stop, attributes)
        return attributes

    def _attribute(self, start: int, end: int, attributes: Attributes) -> None:
        key = ""
        value: str | None = None
        for number, kind, begin, stop in self._fields(start, end):
            if number == 1 and kind == _BYTES:
                key = self._text(begin, stop)
            elif number == 2 and kind == _BYTES:
                value = self._any_value(begin, stop)
        if value is None:
            return
        attributes[key] = value
        if len(attributes) > ATTRIBUTES_MAX:
            raise OtlpError(f"a point has more than {ATTRIBUTES_MAX} attributes")

    def _any_value(self, start: int, end: int) -> str | None:
        """Return the value as text; None for lists, maps and bytes."""
        value: str | None = None
        for number, kind, begin, stop in self._fields(start, end):
            if number == 1 and kind == _BYTES:
                value = self._text(begin, stop)
            elif number == 2 and kind == _VARINT:
                value = "true" if begin else "false"
            elif number == 3 and kind == _VARINT:
                value = str(begin - (1 << 64) if begin >= 1 << 63 else begin)
            elif number == 4 and kind == _FIXED64:
                value = repr(_DOUBLE.unpack_from(self._data, begin)[0])
        return value

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode()

    def _fields(self, position: int, end: int) -> Iterator[_Field]:
        """Walk the fields of the message in `[position, end)`."""
        data = self._data
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise OtlpError(f"the payload has more than {FIELDS_MAX} fields")
            # Nearly every number takes one byte, and is read without a call.
            tag = data[position]
            position += 1
            if tag >= 0x80:
                tag, position = self._varint(position - 1, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise OtlpError("a field has the number 0")
            if kind == _BYTES:
                if position < end and (length := data[position]) < 0x80:
                    position += 1
                else:
                    length, position = self._varint(position, end)
                stop = position + length
            elif kind == _VARINT:
                value, position = self._varint(position, end)
                yield number, kind, value, 0
                continue
            elif kind == _FIXED64:
                stop = position + 8
            elif kind == _FIXED32:
                stop = position + 4
            else:
                raise OtlpError(f"field {number} has the unknown wire type {kind}")
            if stop > end:
                raise OtlpError(f"field {number} exceeds its message")
            yield number, kind, position, stop
            position = stop

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Return the unsigned number at `position`, and the position after it."""
        data = self._data
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            if position >= end:
                raise OtlpError("a number exceeds its message")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
        raise OtlpError(f"a number has more than {_VARINT_BYTES_MAX} bytes")
