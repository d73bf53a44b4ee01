from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from millstream.broker.metrics.exposition import (
    BOUNDS,
    SLICE_SAMPLES,
    Family,
    Histogram,
    format_value,
    render,
    scalar,
)


def parse(*families: Family) -> dict[str, Metric]:
    text = asyncio.run(render(families)).decode()
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


def test_a_bound_belongs_to_the_bucket_it_closes() -> None:
    histogram = Histogram()
    histogram.observe(BOUNDS[3])
    histogram.observe(math.nextafter(BOUNDS[3], 1.0))
    histogram.observe(0.0)
    histogram.observe(3600.0)
    assert histogram.counts[3] == 1
    assert histogram.counts[4] == 1
    assert histogram.counts[0] == 1
    assert histogram.counts[-1] == 1
    assert histogram.count == 4


def test_histogram_buckets_are_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.00001, 0.0007, 0.0008, 99.0):
        histogram.observe(seconds)
    rows = parse(Family("x_seconds", "histogram", "X.", ("api",), [(("Fetch",), histogram)]))
    samples = rows["x_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name == "x_seconds_bucket"}
    assert len(buckets) == len(BOUNDS) + 1
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["5e-05"] == 1
    assert buckets["0.001"] == 3
    assert buckets["30"] == 3
    assert buckets["+Inf"] == 4
    others = {s.name: s.value for s in samples if "le" not in s.labels}
    assert others["x_seconds_count"] == 4
    assert others["x_seconds_sum"] == pytest.approx(99.00151)
    assert all(s.labels["api"] == "Fetch" for s in samples)


def test_a_histogram_without_labels_parses() -> None:
    rows = parse(Family("x_seconds", "histogram", "X.", (), [((), Histogram())]))
    assert len(rows["x_seconds"].samples) == len(BOUNDS) + 3


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_label_value_survives(value: str) -> None:
    rows = parse(
        Family("x_total", "counter", 'Help with \\ and "quotes"\n.', ("l",), [((value,), 7)])
    )
    (sample,) = rows["x"].samples
    # The parser splits lines at every line end that Python knows, Prometheus only at \n.
    if not any(c in value for c in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        assert sample.labels == {"l": value}
    assert sample.value == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2**63 + 1, "9223372036854775809"),
        (0.1, "0.1"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert format_value(value) == text


def test_a_large_document_gives_way_to_other_work() -> None:
    async def run() -> tuple[int, bytes]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        rows = [((str(i),), i) for i in range(10 * SLICE_SAMPLES)]
        text = await render(
            [Family("x", "gauge", "X.", ("n",), rows), scalar("y", "gauge", "Y.", 1)]
        )
        task.cancel()
        return turns, text

    turns, text = asyncio.run(run())
    assert turns >= 10
    assert text.count(b"\n") == 10 * SLICE_SAMPLES + 2 + 3
