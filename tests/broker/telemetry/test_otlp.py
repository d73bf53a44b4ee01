"""Reading OpenTelemetry's metrics: output of Google's protobuf library is read, and a malformed
payload raises an error and nothing else."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import otlp
from millstream.broker.telemetry.otlp import (
    ATTRIBUTES_MAX,
    FIELDS_MAX,
    Metric,
    OtlpError,
    Point,
    read_metrics,
)

TEXTS = st.text(max_size=20)
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.sampled_from([0, 0.0, -1])
)
ATTRIBUTES = st.dictionaries(
    TEXTS,
    st.one_of(TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)),
    max_size=5,
)


def as_label(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@st.composite
def metrics(draw: st.DrawFn) -> tuple[Any, list[Metric]]:
    """Generate a message and the metrics that it holds."""
    shared = draw(ATTRIBUTES)
    written, expected = [], []
    for name, is_sum, is_monotonic, temporality in draw(
        st.lists(
            st.tuples(TEXTS, st.booleans(), st.booleans(), st.sampled_from([0, 1, 2])), max_size=4
        )
    ):
        points = draw(st.lists(st.tuples(VALUES, ATTRIBUTES), max_size=4))
        data_points = [
            otlp.make(
                "NumberDataPoint",
                time_unix_nano=7,
                **{"as_int" if isinstance(value, int) else "as_double": value},
                attributes=otlp.attributes(own),
            )
            for value, own in points
        ]
        if is_sum:
            data: dict[str, Any] = {
                "sum": otlp.make(
                    "Sum",
                    data_points=data_points,
                    aggregation_temporality=temporality,
                    is_monotonic=is_monotonic,
                )
            }
        else:
            data = {"gauge": otlp.make("Gauge", data_points=data_points)}
        written.append(otlp.make("Metric", name=name, description="about it", unit="1", **data))
        expected.append(
            Metric(
                name,
                is_sum and is_monotonic,
                is_sum and temporality == otlp.DELTA,
                [
                    Point(value, {key: as_label(each) for key, each in {**shared, **own}.items()})
                    for value, own in points
                ],
            )
        )
    resource = otlp.make("Resource", attributes=otlp.attributes(shared))
    scope = otlp.make("ScopeMetrics", scope=otlp.make("Scope", name="s"), metrics=written)
    return otlp.make("ResourceMetrics", resource=resource, scope_metrics=[scope]), expected


@given(st.lists(metrics(), max_size=3))
@settings(max_examples=200, deadline=None)
def test_metrics_survive_the_round_trip(resources: list[tuple[Any, list[Metric]]]) -> None:
    data = otlp.make("MetricsData", resource_metrics=[each for each, _ in resources])
    found = list(read_metrics(data.SerializeToString()))
    assert found == [metric for _, expected in resources for metric in expected]


@given(st.binary(max_size=400))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    with contextlib.suppress(OtlpError):
        list(read_metrics(data))


def test_damaged_payloads_are_read_or_rejected() -> None:
    seed = random.randrange(2**32)
    chooser = random.Random(seed)
    whole = otlp.payload(
        otlp.counter("org.apache.kafka.producer.a.total", otlp.point(3, topic="t"), otlp.point(4)),
        otlp.gauge("org.apache.kafka.producer.b", otlp.point(1.5, node_id=7, last=True)),
        client_rack="r",
    )
    rejected = 0
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(chooser.randint(1, 4)):
            data[chooser.randrange(len(data))] = chooser.randrange(256)
        del data[chooser.randint(len(data) // 2, len(data)) :]
        try:
            list(read_metrics(bytes(data)))
        except OtlpError:
            rejected += 1
        except Exception as error:
            error.add_note(f"seed {seed}: {data.hex()}")
            raise
    assert rejected


def test_every_truncation_is_rejected_or_leaves_whole_metrics() -> None:
    whole = otlp.payload(otlp.gauge("a", otlp.point(1, topic="t")), otlp.gauge("b", otlp.point(2)))
    assert len(list(read_metrics(whole))) == 2
    for length in range(1, len(whole)):
        with pytest.raises(OtlpError, match="exceeds"):
            list(read_metrics(whole[:length]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x05\x12", "exceeds its message"),
        (b"\x0a", "number exceeds"),
        (b"\x0a" + b"\xff" * 9 + b"\x01", "exceeds its message"),
        (b"\x0a" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x02\x00", "the number 0"),
        (b"\x09\x00\x00", "exceeds its message"),
        # The inner length fits the payload but not the enclosing message.
        (b"\x0a\x02\x12\x04" + b"\x00" * 8, "exceeds its message"),
    ],
)
def test_malformed(data: bytes, reason: str) -> None:
    with pytest.raises(OtlpError, match=reason):
        list(read_metrics(data))


def test_text_that_is_not_utf8() -> None:
    data = otlp.payload(otlp.gauge("name", otlp.point(1))).replace(b"name", b"\xff\xfe\xfd\xfc")
    with pytest.raises(OtlpError, match="UTF-8"):
        list(read_metrics(data))


def test_a_resource_may_follow_what_it_describes() -> None:
    scope = otlp.make(
        "ResourceMetrics",
        scope_metrics=[otlp.make("ScopeMetrics", metrics=[otlp.gauge("a", otlp.point(1))])],
    )
    resource = otlp.make(
        "ResourceMetrics",
        resource=otlp.make("Resource", attributes=otlp.attributes({"client_rack": "r"})),
    )
    inner = scope.SerializeToString() + resource.SerializeToString()
    (metric,) = read_metrics(b"\x0a" + bytes([len(inner)]) + inner)
    assert metric.points == [Point(1, {"client_rack": "r"})]


def test_points_that_are_not_numbers_are_skipped() -> None:
    silent = otlp.make("NumberDataPoint", as_int=1, flags=1)
    empty = otlp.make("NumberDataPoint")
    histogram = otlp.make("Metric", name="h", histogram=otlp.make("Histogram"))
    octets = otlp.make(
        "KeyValue", key="bytes", value=otlp.make("AnyValue", bytes_value=b"\x00\x01")
    )
    odd = otlp.make("NumberDataPoint", as_double=math.inf, attributes=[octets])
    found = list(read_metrics(otlp.payload(otlp.gauge("g", silent, empty, odd), histogram)))
    assert [(metric.name, metric.points) for metric in found] == [
        ("g", [Point(math.inf, {})]),
        ("h", []),
    ]


def test_the_number_of_fields_is_bounded() -> None:
    empty_resources = b"\x0a\x00" * (FIELDS_MAX + 1)
    with pytest.raises(OtlpError, match="fields"):
        list(read_metrics(empty_resources))
    assert list(read_metrics(empty_resources[: 2 * FIELDS_MAX])) == []


def test_the_number_of_attributes_is_bounded() -> None:
    names = {f"a{number}": "x" for number in range(ATTRIBUTES_MAX)}
    (metric,) = read_metrics(otlp.payload(otlp.gauge("g", otlp.point(1, **names))))
    assert len(metric.points[0].attributes) == ATTRIBUTES_MAX
    with pytest.raises(OtlpError, match="attributes"):
        list(read_metrics(otlp.payload(otlp.gauge("g", otlp.point(1, **names)), one_more="x")))
