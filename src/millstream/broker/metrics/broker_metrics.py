"""The broker's counters, under the names that Prometheus sees.

Owns the counters and the label budgets; `exposition.py` owns the text and `http.py` serves it. The
code that does the work keeps a reference to its row (`ApiMetrics`, `TopicMetrics`, a `Histogram`)
and adds to plain attributes. Everything else happens at a scrape.

All counters belong to the event-loop thread. They start at zero with the process.

Label budget: a broker may hold 100,000 topics, too many for a time-series database. The first
`topic_labels_max` topics and `partition_labels_max` partitions get rows of their own. All others
share one row labelled `_other`, and `millstream_metrics_topics_folded` (and
`..._partitions_folded`) count them. A deleted topic frees its row.
"""

from __future__ import annotations

import importlib.metadata
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from millstream.broker.metrics.exposition import (
    BOUNDS,
    Family,
    Histogram,
    Kind,
    LabelValues,
    Value,
    render,
    scalar,
)
from millstream.model.error import ErrorCode

OTHER: Final = "_other"
TOPIC_LABELS_MAX_DEFAULT: Final = 1000
PARTITION_LABELS_MAX_DEFAULT: Final = 200

RowSource = Callable[[], Iterable[tuple[LabelValues, Value]]]


class ApiMetrics:
    """The row of one API. `errors` counts error codes sent, of whole responses and single rows."""

    __slots__ = ("errors", "local", "name", "queue", "requests", "total")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.errors: defaultdict[int, int] = defaultdict(int)
        self.queue = Histogram()
        self.local = Histogram()
        self.total = Histogram()

    def count_response(self, queue: float, local: float, total: float) -> None:
        """Count one request: the seconds it waited for its turn, the seconds of its handler's own
        work, and the seconds from its last byte to the response passed to the socket."""
        self.requests += 1
        # `Histogram.observe` inlined three times, because this runs for every request.
        row = self.queue
        row.counts[bisect_left(BOUNDS, queue)] += 1
        row.sum_seconds += queue
        row = self.local
        row.counts[bisect_left(BOUNDS, local)] += 1
        row.sum_seconds += local
        row = self.total
        row.counts[bisect_left(BOUNDS, total)] += 1
        row.sum_seconds += total


class TopicMetrics:
    """The row of one topic, or the row that all topics beyond the budget share."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "messages_in",
        "messages_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        self.messages_out = 0
        self.failed_produces = 0
        self.failed_fetches = 0


class ConnectionMetrics:
    """Counts of connections. The keys of `refused` and `closed` are short reasons."""

    __slots__ = (
        "accepted",
        "closed",
        "open",
        "refused",
        "request_bytes_in_flight",
        "throttled_reads",
    )

    def __init__(self) -> None:
        self.open = 0
        self.accepted = 0
        self.refused: defaultdict[str, int] = defaultdict(int)
        self.closed: defaultdict[str, int] = defaultdict(int)
        self.request_bytes_in_flight = 0
        self.throttled_reads = 0


class ConnectionSource(Protocol):
    """Source of the counts of connections; read at each scrape."""

    @property
    def open(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def refused(self) -> Mapping[str, int]: ...
    @property
    def closed(self) -> Mapping[str, int]: ...
    @property
    def request_bytes_in_flight(self) -> int: ...
    @property
    def throttled_reads(self) -> int: ...


class PartitionSize(NamedTuple):
    """The size and offsets of one partition's log, for a scrape."""

    topic: str
    partition: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int


PartitionSource = Callable[[], Iterable[PartitionSize]]

_TOPIC_COUNTERS: Final = (
    ("bytes_in", "received_bytes_total", "Bytes of record batches appended for producers."),
    ("bytes_out", "sent_bytes_total", "Bytes of record batches sent to consumers."),
    ("messages_in", "received_messages_total", "Records appended for producers."),
    ("messages_out", "sent_messages_total", "Offsets sent to consumers."),
    ("failed_produces", "failed_produces_total", "Partitions of Produce requests rejected."),
    ("failed_fetches", "failed_fetches_total", "Partitions of Fetch requests rejected."),
)


def _process_metrics() -> Callable[[], bytes]:
    # Imported here, because a broker starts faster without it.
    from prometheus_client import (
        CollectorRegistry,
        GCCollector,
        ProcessCollector,
        generate_latest,
    )

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return partial(generate_latest, registry)


class Metrics:
    """All metrics of a broker, as `/metrics` shows them."""

    __slots__ = (
        "_acks",
        "_acks_folded",
        "_apis",
        "_extra",
        "_families",
        "_partition_labels_max",
        "_process",
        "_topic_labels_max",
        "_topics",
        "_topics_folded",
        "before_render",
        "connections",
        "other_ack",
        "other_topic",
        "partition_source",
    )

    def __init__(
        self,
        *,
        topic_labels_max: int = TOPIC_LABELS_MAX_DEFAULT,
        partition_labels_max: int = PARTITION_LABELS_MAX_DEFAULT,
    ) -> None:
        self.connections: ConnectionSource = ConnectionMetrics()
        self.other_topic = TopicMetrics()
        self.other_ack = Histogram()
        #: Yields one row per partition, lazily: reading stops at the budget.
        self.partition_source: PartitionSource | None = None
        #: Awaited before each scrape: counting that takes more than one turn of the loop.
        self.before_render: list[Callable[[], Awaitable[None]]] = []
        self._topic_labels_max = topic_labels_max
        self._partition_labels_max = partition_labels_max
        self._apis: dict[str, ApiMetrics] = {}
        self._topics: dict[str, TopicMetrics] = {}
        self._topics_folded: set[str] = set()
        self._acks: dict[tuple[str, int], Histogram] = {}
        self._acks_folded: set[tuple[str, int]] = set()
        self._extra: list[tuple[str, Kind, str, tuple[str, ...], RowSource]] = []
        self._families: list[Callable[[], Iterable[Family]]] = []
        #: Renders prometheus_client's process metrics; made at the first scrape.
        self._process: Callable[[], bytes] | None = None

    def api(self, name: str) -> ApiMetrics:
        """Return the row of the API `name` (`Produce`, `Fetch`, ...). The caller keeps it."""
        row = self._apis.get(name)
        if row is None:
            row = self._apis[name] = ApiMetrics(name)
        return row

    def topic(self, name: str) -> TopicMetrics:
        """Return the topic's own row or the shared one. Valid as long as the topic exists."""
        row = self._topics.get(name)
        if row is not None:
            return row
        is_full = len(self._topics) >= self._topic_labels_max
        # A topic may have the name of the shared row.
        if is_full or name == OTHER or name in self._topics_folded:
            self._topics_folded.add(name)
            return self.other_topic
        row = self._topics[name] = TopicMetrics()
        return row

    def produce_ack(self, topic: str, partition: int) -> Histogram:
        """Return the histogram of the time from a Produce request to its acknowledgement."""
        key = (topic, partition)
        row = self._acks.get(key)
        if row is not None:
            return row
        if key in self._acks_folded or len(self._acks) >= self._partition_labels_max:
            self._acks_folded.add(key)
            return self.other_ack
        row = self._acks[key] = Histogram()
        return row

    def forget_topic(self, name: str) -> None:
        """Remove the rows of a deleted topic, which frees them for other topics."""
        self._topics.pop(name, None)
        self._topics_folded.discard(name)
        for key in [key for key in self._acks if key[0] == name]:
            del self._acks[key]
        if self._acks_folded:
            self._acks_folded = {key for key in self._acks_folded if key[0] != name}

    def add_counter(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Show `read()` at each scrape as the counter `millstream_<name>` (ending in `_total`)."""
        self.add_rows(name, "counter", description, (), lambda: [((), read())])

    def add_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Show `read()` at each scrape as the gauge `millstream_<name>`."""
        self.add_rows(name, "gauge", description, (), lambda: [((), read())])

    def add_attributes(
        self, prefix: str, kind: Kind, owner: object, descriptions: Mapping[str, str]
    ) -> None:
        """Show numeric attributes of an object that counts for itself (cleaner, upkeep).

        `descriptions` maps attribute to description. The counter `runs` with the prefix
        `compaction` is shown as `millstream_compaction_runs_total`.
        """
        suffix = "_total" if kind == "counter" else ""
        for attribute, description in descriptions.items():
            self.add_rows(
                f"{prefix}_{attribute}{suffix}",
                kind,
                description,
                (),
                partial(_attribute_rows, owner, attribute),
            )

    def add_rows(
        self, name: str, kind: Kind, description: str, label_names: LabelValues, read: RowSource
    ) -> None:
        """Show the rows of `read()` at each scrape. The caller bounds the number of rows."""
        self._extra.append((f"millstream_{name}", kind, description, label_names, read))

    def add_families(self, read: Callable[[], Iterable[Family]]) -> None:
        """Show whole families at each scrape. Their names must be unique."""
        self._families.append(read)

    async def render(self) -> bytes:
        """Return all metrics as Prometheus text, rendered in slices that yield to the loop."""
        if self._process is None:
            self._process = _process_metrics()
        for refresh in self.before_render:
            await refresh()
        return await render(self.families()) + self._process()

    def families(self) -> Iterator[Family]:
        """Yield the metrics in order. Lists are copied, because counting continues meanwhile."""
        yield Family(
            "millstream_build_info",
            "gauge",
            "Always 1; the labels are the versions of Millstream and Python.",
            ("version", "python"),
            [((importlib.metadata.version("millstream"), platform.python_version()), 1)],
        )
        yield from self._api_families()
        yield from self._topic_families()
        yield from self._partition_families()
        yield from self._connection_families()
        for name, kind, description, label_names, read in self._extra:
            yield Family(name, kind, description, label_names, list(read()))
        for families in self._families:
            yield from families()

    def _api_families(self) -> Iterator[Family]:
        apis = list(self._apis.values())
        yield Family(
            "millstream_requests_total",
            "counter",
            "Requests with a response.",
            ("api",),
            [((api.name,), api.requests) for api in apis],
        )
        yield Family(
            "millstream_request_errors_total",
            "counter",
            "Error codes sent in responses.",
            ("api", "error"),
            [((api.name, _error_name(code)), n) for api in apis for code, n in api.errors.items()],
        )
        for attribute, name, description in (
            ("queue", "request_queue_seconds", "Time a request waited before its handler began."),
            ("local", "request_local_seconds", "Time of the handler's own work on a request."),
            ("total", "request_seconds", "Time from a request received to its response sent."),
        ):
            rows: list[tuple[LabelValues, Value]] = [
                ((api.name,), getattr(api, attribute)) for api in apis
            ]
            yield Family(f"millstream_{name}", "histogram", description, ("api",), rows)

    def _topic_families(self) -> Iterator[Family]:
        topics = list(self._topics.items())
        if self._topics_folded:
            topics.append((OTHER, self.other_topic))
        for attribute, name, description in _TOPIC_COUNTERS:
            rows = [((topic,), getattr(row, attribute)) for topic, row in topics]
            yield Family(f"millstream_topic_{name}", "counter", description, ("topic",), rows)
        yield scalar(
            "millstream_metrics_topics_folded",
            "gauge",
            "Topics beyond the label budget, which share the row _other.",
            len(self._topics_folded),
        )

    def _partition_families(self) -> Iterator[Family]:
        labels = ("topic", "partition")
        acks: list[tuple[LabelValues, Value]] = [
            ((topic, str(partition)), row) for (topic, partition), row in self._acks.items()
        ]
        if self._acks_folded:
            acks.append(((OTHER, OTHER), self.other_ack))
        yield Family(
            "millstream_produce_ack_seconds",
            "histogram",
            "Time from a Produce request received to its acknowledgement.",
            labels,
            acks,
        )
        yield scalar(
            "millstream_metrics_partitions_folded",
            "gauge",
            "Partitions beyond the label budget, whose acknowledgement times share the row _other.",
            len(self._acks_folded),
        )
        source = self.partition_source
        sizes = list(islice(source(), self._partition_labels_max)) if source else []
        for attribute, name, description in (
            ("size_bytes", "size_bytes", "Bytes of a partition's segments."),
            ("log_start_offset", "start_offset", "First offset of a partition."),
            ("log_end_offset", "end_offset", "Offset of the next record."),
        ):
            rows = [((s.topic, str(s.partition)), getattr(s, attribute)) for s in sizes]
            yield Family(f"millstream_log_{name}", "gauge", description, labels, rows)

    def _connection_families(self) -> Iterator[Family]:
        sockets = self.connections
        yield scalar("millstream_connections_open", "gauge", "Connections open.", sockets.open)
        yield scalar(
            "millstream_connections_accepted_total",
            "counter",
            "Connections accepted.",
            sockets.accepted,
        )
        for name, description, reasons in (
            ("refused", "Connections rejected at accept, by reason.", sockets.refused),
            ("closed", "Connections closed, by reason.", sockets.closed),
        ):
            rows = [((reason,), n) for reason, n in reasons.items()]
            full_name = f"millstream_connections_{name}_total"
            yield Family(full_name, "counter", description, ("reason",), rows)
        yield scalar(
            "millstream_request_in_flight_bytes",
            "gauge",
            "Bytes of requests received that have no response yet.",
            sockets.request_bytes_in_flight,
        )
        yield scalar(
            "millstream_throttled_reads_total",
            "counter",
            "Times that a connection stopped reading for lack of request memory.",
            sockets.throttled_reads,
        )


def _attribute_rows(owner: object, attribute: str) -> list[tuple[LabelValues, Value]]:
    return [((), getattr(owner, attribute))]


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
