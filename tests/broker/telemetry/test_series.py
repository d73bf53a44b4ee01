"""Metrics of clients as series: names, labels, the budget, deltas, and expiry."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.broker.metrics.exposition import render
from millstream.broker.telemetry import series as module
from millstream.broker.telemetry.otlp import Metric, Point
from millstream.broker.telemetry.series import ClientSeries, Collected

Rows = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def gauge(metric: str, /, *values: float, **attributes: str) -> Metric:
    return Metric(metric, False, False, [Point(value, attributes) for value in values])


def counter(name: str, value: float, *, is_delta: bool = False, **attributes: str) -> Metric:
    return Metric(name, True, is_delta, [Point(value, attributes)])


def push(series: ClientSeries, client: str, *metrics: Metric, expires_at: float = 60.0) -> None:
    collected = Collected({"client_id": client})
    for metric in metrics:
        collected.add(metric)
    series.update(client, collected, expires_at)


def rows(series: ClientSeries) -> Rows:
    """Return the rows that Prometheus reads."""
    text = asyncio.run(render(series.families())).decode()
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if v))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def row(family: str, client: str, /, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return f"kafka_client_{family}", tuple(sorted({**labels, "client_id": client}.items()))


def test_names_and_labels() -> None:
    series = ClientSeries(100)
    push(
        series,
        "c",
        gauge("org.apache.kafka.producer.request.latency.avg", 1.5),
        gauge("org.apache.kafka.consumer.node.latency", 2, **{"node.id": "1", "7th": "x"}),
        counter("org.apache.kafka.producer.connection.creation.total", 3),
        counter("com.example.things", 4, topic='a "quoted" \\ name'),
        gauge("..odd name!!", 5, __name__="stolen", client_id="somebody else"),
    )
    assert rows(series) == {
        row("producer_request_latency_avg", "c"): 1.5,
        row("consumer_node_latency", "c", node_id="1", _7th="x"): 2,
        row("producer_connection_creation_total", "c"): 3,
        row("com_example_things_total", "c", topic='a "quoted" \\ name'): 4,
        row("odd_name", "c", name="stolen"): 5,
    }


def test_rows_of_a_family_may_have_different_labels() -> None:
    series = ClientSeries(100)
    push(series, "a", gauge("g", 1, topic="t"))
    push(series, "b", gauge("g", 2, node_id="1"))
    assert rows(series) == {row("g", "a", topic="t"): 1, row("g", "b", node_id="1"): 2}


def test_a_push_replaces_the_one_before() -> None:
    series = ClientSeries(100)
    push(series, "c", gauge("a", 1), gauge("b", 1), counter("n", 5))
    push(series, "c", gauge("b", 2), counter("n", 7))
    assert rows(series) == {row("b", "c"): 2, row("n_total", "c"): 7}
    assert len(series) == 2


def test_deltas_are_added_up_and_stay() -> None:
    series = ClientSeries(100)
    push(series, "c", counter("n", 5, is_delta=True), gauge("g", 1))
    push(series, "c", counter("n", 7, is_delta=True), counter("m", 1, is_delta=True))
    push(series, "c", gauge("g", 2))
    assert rows(series) == {row("n_total", "c"): 12, row("m_total", "c"): 1, row("g", "c"): 2}


def test_a_client_fits_into_the_budget_or_is_not_shown() -> None:
    series = ClientSeries(3)
    push(series, "a", gauge("x", 1), gauge("y", 1))
    push(series, "b", gauge("x", 2), gauge("y", 2))
    assert rows(series) == {row("x", "a"): 1, row("y", "a"): 1}
    assert (series.folded, series.dropped["budget"]) == (1, 2)
    push(series, "b", gauge("x", 3))
    assert rows(series)[row("x", "b")] == 3
    assert series.folded == 0


def test_a_client_beyond_the_budget_keeps_its_series() -> None:
    series = ClientSeries(2)
    push(series, "a", gauge("x", 1), gauge("y", 1))
    push(series, "a", gauge("x", 2), gauge("z", 2), gauge("y", 2))
    assert rows(series) == {row("x", "a"): 2, row("y", "a"): 2}
    assert series.dropped["budget"] == 1


def test_one_client_can_not_take_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENT_SERIES_MAX", 2)
    series = ClientSeries(100)
    push(series, "a", *(gauge("g", 1, topic=name) for name in "abc"))
    assert len(series) == 2
    assert series.dropped["client_budget"] == 1


def test_characters_that_labels_cannot_hold_are_dropped() -> None:
    series = ClientSeries(100)
    push(
        series,
        "a",
        gauge("nul", 1, topic="a\0b"),
        gauge("long", 1, topic="x" * 257),
        gauge("nameless", 1, **{"!!": "x"}),
        gauge("!!", 1),
        gauge("n" * 257, 1),
        gauge("kept", 1, topic=""),
    )
    assert rows(series) == {row("kept", "a"): 1}
    assert dict(series.dropped) == {"label": 3, "name": 2}


def test_a_name_has_one_kind() -> None:
    series = ClientSeries(100)
    push(series, "a", counter("x", 1))
    push(series, "b", gauge("x.total", 2), gauge("y", 2))
    push(series, "c", gauge("z.total", 3), counter("z", 4))
    assert rows(series) == {row("x_total", "a"): 1, row("y", "b"): 2, row("z_total", "c"): 3}
    assert series.dropped["kind"] == 2
    series.remove("a")
    push(series, "b", gauge("x.total", 2))
    assert rows(series)[row("x_total", "b")] == 2


def test_expired_series_free_their_budget() -> None:
    series = ClientSeries(2)
    push(series, "a", gauge("x", 1), gauge("y", 1), expires_at=10.0)
    push(series, "b", gauge("x", 1), expires_at=10.0)
    series.expire(9.9)
    assert (len(series), series.folded) == (2, 1)
    series.expire_by("a", 5.0)
    series.expire_by("b", 5.0)
    series.expire(5.0)
    assert (len(series), series.folded, rows(series)) == (0, 0, {})
    push(series, "b", gauge("x", 1), gauge("y", 1))
    assert len(series) == 2


def test_leaving_does_not_prolong() -> None:
    series = ClientSeries(10)
    push(series, "a", gauge("x", 1), expires_at=10.0)
    series.expire_by("a", 60.0)
    series.expire(10.0)
    assert len(series) == 0
