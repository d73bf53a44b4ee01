from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from millstream.broker.metrics.broker_metrics import OTHER, Metrics, PartitionSize
from millstream.model.error import ErrorCode


def scrape(metrics: Metrics) -> list[Sample]:
    text = asyncio.run(metrics.render()).decode()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert all(n.startswith(("millstream_", "process_", "python_gc_")) for n in names)
    return [sample for family in families for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    (found,) = [s.value for s in samples if s.name == name and s.labels == labels]
    return found


def names(samples: list[Sample]) -> set[str]:
    return {sample.name for sample in samples}


def test_an_idle_broker_renders() -> None:
    samples = scrape(Metrics())
    assert value(samples, "millstream_connections_open") == 0
    assert value(samples, "millstream_metrics_topics_folded") == 0
    assert {"process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"} <= (
        names(samples)
    )
    (build,) = [s for s in samples if s.name == "millstream_build_info"]
    assert set(build.labels) == {"version", "python"}


def test_api_rows() -> None:
    metrics = Metrics()
    produce = metrics.api("Produce")
    assert metrics.api("Produce") is produce
    produce.count_response(0.0001, 0.002, 0.004)
    produce.count_response(0.0001, 0.002, 0.004)
    produce.errors[ErrorCode.CORRUPT_MESSAGE] += 1
    produce.errors[9999] += 3
    metrics.api("Fetch")
    samples = scrape(metrics)
    assert value(samples, "millstream_requests_total", api="Produce") == 2
    assert value(samples, "millstream_requests_total", api="Fetch") == 0
    errors = "millstream_request_errors_total"
    assert value(samples, errors, api="Produce", error="CORRUPT_MESSAGE") == 1
    assert value(samples, errors, api="Produce", error="9999") == 3
    bucket = "millstream_request_seconds_bucket"
    assert value(samples, bucket, api="Produce", le="0.0025") == 0
    assert value(samples, bucket, api="Produce", le="0.005") == 2
    assert value(samples, "millstream_request_queue_seconds_count", api="Produce") == 2
    assert value(samples, "millstream_request_local_seconds_sum", api="Produce") == 0.004


def test_topics_past_the_budget_share_a_row() -> None:
    metrics = Metrics(topic_labels_max=2)
    for name in ("a", "b", "c", "d"):
        metrics.topic(name).bytes_in += 10
    assert metrics.topic("c") is metrics.topic("d") is metrics.other_topic
    assert metrics.topic("a") is not metrics.topic("b")
    samples = scrape(metrics)
    received = "millstream_topic_received_bytes_total"
    assert value(samples, received, topic="a") == 10
    assert value(samples, received, topic=OTHER) == 20
    assert {s.labels["topic"] for s in samples if s.name == received} == {"a", "b", OTHER}
    assert value(samples, "millstream_metrics_topics_folded") == 2


def test_a_deleted_topic_gives_its_row_back() -> None:
    metrics = Metrics(topic_labels_max=1, partition_labels_max=1)
    for name in ("a", "b"):
        metrics.topic(name)
        metrics.produce_ack(name, 0)
    metrics.forget_topic("a")
    # A folded topic stays folded: the code that holds the shared row keeps counting there.
    assert metrics.topic("b") is metrics.other_topic
    metrics.forget_topic("b")
    assert metrics.topic("c") is not metrics.other_topic
    assert metrics.produce_ack("c", 0) is not metrics.other_ack
    samples = scrape(metrics)
    assert value(samples, "millstream_metrics_topics_folded") == 0
    assert value(samples, "millstream_metrics_partitions_folded") == 0
    assert {s.labels["topic"] for s in samples if "topic" in s.labels} == {"c"}


def test_partitions_past_the_budget_share_a_histogram() -> None:
    metrics = Metrics(partition_labels_max=1)
    metrics.produce_ack("a", 0).observe(0.001)
    metrics.produce_ack("a", 1).observe(0.001)
    metrics.produce_ack("a", 2).observe(0.001)
    samples = scrape(metrics)
    count = "millstream_produce_ack_seconds_count"
    assert value(samples, count, topic="a", partition="0") == 1
    assert value(samples, count, topic=OTHER, partition=OTHER) == 2
    assert value(samples, "millstream_metrics_partitions_folded") == 2


def test_partition_sizes_are_read_up_to_the_budget() -> None:
    asked = 0

    def source() -> Iterator[PartitionSize]:
        nonlocal asked
        for partition in itertools.count():
            asked += 1
            yield PartitionSize("t", partition, 100, 5, 50)

    metrics = Metrics(partition_labels_max=3)
    metrics.partition_source = source
    samples = scrape(metrics)
    assert asked == 3
    assert value(samples, "millstream_log_size_bytes", topic="t", partition="2") == 100
    assert value(samples, "millstream_log_start_offset", topic="t", partition="0") == 5
    assert value(samples, "millstream_log_end_offset", topic="t", partition="1") == 50


def test_connections() -> None:
    metrics = Metrics()
    metrics.connections.accepted += 3
    metrics.connections.open += 2
    metrics.connections.refused["per_address_limit"] += 1
    metrics.connections.closed["idle"] += 1
    metrics.connections.request_bytes_in_flight = 4096
    metrics.connections.throttled_reads += 1
    samples = scrape(metrics)
    assert value(samples, "millstream_connections_open") == 2
    refused = "millstream_connections_refused_total"
    assert value(samples, refused, reason="per_address_limit") == 1
    assert value(samples, "millstream_connections_closed_total", reason="idle") == 1
    assert value(samples, "millstream_request_in_flight_bytes") == 4096


def test_counters_are_read_from_other_objects() -> None:
    class Cleaner:
        runs = 0
        bytes_read = 0

    cleaner = Cleaner()
    metrics = Metrics()
    metrics.add_attributes(
        "compaction", "counter", cleaner, {"runs": "Runs.", "bytes_read": "Bytes read."}
    )
    metrics.add_gauge("topics", "Topics.", lambda: 12)
    metrics.add_counter("retention_deleted_segments_total", "Segments.", lambda: 4)
    metrics.add_rows("dirty", "gauge", "Dirty.", ("topic",), lambda: [(("t",), 0.5)])
    cleaner.runs, cleaner.bytes_read = 2, 1000
    samples = scrape(metrics)
    assert value(samples, "millstream_compaction_runs_total") == 2
    assert value(samples, "millstream_compaction_bytes_read_total") == 1000
    assert value(samples, "millstream_topics") == 12
    assert value(samples, "millstream_retention_deleted_segments_total") == 4
    assert value(samples, "millstream_dirty", topic="t") == 0.5


def test_a_topic_with_the_name_of_the_shared_row_is_counted_in_it() -> None:
    metrics = Metrics(topic_labels_max=5)
    assert metrics.topic("_other") is metrics.other_topic
    assert metrics.topic("t") is not metrics.other_topic
    metrics.topic("_other").bytes_in += 7
    rows = [
        family.rows
        for family in metrics.families()
        if family.name == "millstream_topic_received_bytes_total"
    ]
    assert [list(each) for each in rows] == [[(("t",), 0), (("_other",), 7)]]


def test_refreshes_are_awaited_before_a_scrape() -> None:
    metrics = Metrics()
    seen = 0

    async def look() -> None:
        nonlocal seen
        await asyncio.sleep(0)
        seen += 1

    metrics.before_render.append(look)
    metrics.add_gauge("looks", "Looks.", lambda: seen)
    assert b"millstream_looks 1\n" in asyncio.run(metrics.render())
