"""OpenTelemetry's metrics, encoded by Google's protobuf library from declarations in this module.

The broker decodes them with its own code, so tests encode them with another implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "millstream.test.otlp"
_KINDS: Final = {
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "fixed64": descriptor_pb2.FieldDescriptorProto.TYPE_FIXED64,
    "sfixed64": descriptor_pb2.FieldDescriptorProto.TYPE_SFIXED64,
}
#: The fields of each message as (number, name, type); `*` is repeated, `?` is a oneof.
_MESSAGES: Final[dict[str, list[tuple[int, str, str]]]] = {
    "AnyValue": [
        (1, "string_value", "?string"),
        (2, "bool_value", "?bool"),
        (3, "int_value", "?int64"),
        (4, "double_value", "?double"),
        (7, "bytes_value", "?bytes"),
    ],
    "KeyValue": [(1, "key", "string"), (2, "value", "AnyValue")],
    "NumberDataPoint": [
        (2, "start_time_unix_nano", "fixed64"),
        (3, "time_unix_nano", "fixed64"),
        (4, "as_double", "?double"),
        (6, "as_int", "?sfixed64"),
        (7, "attributes", "*KeyValue"),
        (8, "flags", "uint32"),
    ],
    "Gauge": [(1, "data_points", "*NumberDataPoint")],
    "Sum": [
        (1, "data_points", "*NumberDataPoint"),
        (2, "aggregation_temporality", "uint32"),
        (3, "is_monotonic", "bool"),
    ],
    "Histogram": [(2, "aggregation_temporality", "uint32")],
    "Metric": [
        (1, "name", "string"),
        (2, "description", "string"),
        (3, "unit", "string"),
        (5, "gauge", "?Gauge"),
        (7, "sum", "?Sum"),
        (9, "histogram", "?Histogram"),
    ],
    "Scope": [(1, "name", "string")],
    "ScopeMetrics": [(1, "scope", "Scope"), (2, "metrics", "*Metric"), (3, "schema_url", "string")],
    "Resource": [(1, "attributes", "*KeyValue"), (2, "dropped_attributes_count", "uint32")],
    "ResourceMetrics": [
        (1, "resource", "Resource"),
        (2, "scope_metrics", "*ScopeMetrics"),
        (3, "schema_url", "string"),
    ],
    "MetricsData": [(1, "resource_metrics", "*ResourceMetrics")],
}

DELTA, CUMULATIVE = 1, 2


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="otlp_for_tests.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        choices = [field for field in fields if field[2].startswith("?")]
        if choices:
            message.oneof_decl.add(name="choice")
        for number, field_name, text in fields:
            kind = text.lstrip("*?")
            field = message.field.add(name=field_name, number=number)
            field.label = (
                descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if text.startswith("*")
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            if kind in _KINDS:
                field.type = _KINDS[kind]
            else:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            if text.startswith("?"):
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASSES: Final = _classes()


def make(message: str, /, **fields: Any) -> Any:
    """Make a message by its OpenTelemetry name."""
    return _CLASSES[message](**fields)


def attributes(values: Mapping[str, object]) -> list[Any]:
    kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
    return [
        make("KeyValue", key=key, value=make("AnyValue", **{kinds[type(value)]: value}))
        for key, value in values.items()
    ]


def point(value: float, /, **labels: object) -> Any:
    kind = "as_int" if isinstance(value, int) else "as_double"
    return make("NumberDataPoint", **{kind: value}, attributes=attributes(labels))


def gauge(name: str, *points: Any) -> Any:
    return make("Metric", name=name, gauge=make("Gauge", data_points=points))


def counter(name: str, *points: Any, temporality: int = CUMULATIVE) -> Any:
    total = make("Sum", data_points=points, aggregation_temporality=temporality, is_monotonic=True)
    return make("Metric", name=name, sum=total)


def payload(*metrics: Any, **resource: object) -> bytes:
    """Return the bytes of a push of these metrics, for one resource with these attributes."""
    one = make(
        "ResourceMetrics",
        resource=make("Resource", attributes=attributes(resource)),
        scope_metrics=[make("ScopeMetrics", metrics=metrics)],
    )
    data: bytes = make("MetricsData", resource_metrics=[one]).SerializeToString()
    return data
