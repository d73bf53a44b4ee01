"""Metrics of clients as Prometheus series, within a budget.

`org.apache.kafka.producer.connection.creation.total` becomes
`kafka_client_producer_connection_creation_total`. Attributes become labels. The client's instance
id, client id and software are labels too, and no attribute replaces them.

A push replaces all series of its client, except sums of deltas: those are summed up here and stay.
Everything that clients send is bounded: a client has at most `CLIENT_SERIES_MAX` series, all
clients together have `series_max`, and a client that does not fit has none. Names and label values
are bounded and printable. A client's series expire after a time without a push.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from millstream.broker.metrics.exposition import Family, Kind
from millstream.broker.metrics.label_budget import NAME_CHARACTERS_MAX, LabelBudget
from millstream.broker.telemetry.otlp import Metric

PREFIX: Final = "kafka_client_"
CLIENT_SERIES_MAX: Final = 2000
_KAFKA_PREFIX: Final = "org.apache.kafka."
_COUNTER_SUFFIX: Final = "_total"
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_]+")

Labels: TypeAlias = tuple[tuple[str, str], ...]
#: Name of the family, and the labels in alphabetical order.
SeriesKey: TypeAlias = tuple[str, Labels]


class Sample(NamedTuple):
    kind: Kind
    value: float
    is_delta: bool


class _Family:
    __slots__ = ("kind", "rows")

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.rows: dict[Labels, float] = {}


class _Client:
    __slots__ = ("expires_at", "series")

    def __init__(self) -> None:
        self.expires_at = 0.0
        #: Its series, and whether each is a sum of deltas.
        self.series: dict[SeriesKey, bool] = {}


class Collected:
    """The series of one push. Points that cannot be shown are counted in `dropped`."""

    __slots__ = ("_client_labels", "_kinds", "dropped", "samples")

    def __init__(self, client_labels: dict[str, str]) -> None:
        self._client_labels = client_labels
        self._kinds: dict[str, Kind] = {}
        self.samples: dict[SeriesKey, Sample] = {}
        self.dropped: Counter[str] = Counter()

    def add(self, metric: Metric) -> None:
        kind: Kind = "counter" if metric.is_counter else "gauge"
        name = _family_name(metric.name, kind)
        if name is None or self._kinds.setdefault(name, kind) != kind:
            self.dropped["name" if name is None else "kind"] += len(metric.points)
            return
        for value, attributes in metric.points:
            labels = self._labels(attributes)
            if labels is None:
                self.dropped["label"] += 1
            elif len(self.samples) >= CLIENT_SERIES_MAX:
                self.dropped["client_budget"] += 1
            else:
                self.samples[name, labels] = Sample(kind, value, metric.is_delta)

    def _labels(self, attributes: dict[str, str]) -> Labels | None:
        labels: dict[str, str] = {}
        for key, value in attributes.items():
            label = _label_name(key)
            if not label or len(value) > NAME_CHARACTERS_MAX or not value.isprintable():
                return None
            labels[label] = value
        labels.update(self._client_labels)
        return tuple(sorted(labels.items()))


class ClientSeries:
    """The series of all clients of this broker, within the budget."""

    __slots__ = ("_budget", "_clients", "_families", "_folded", "dropped")

    def __init__(self, series_max: int) -> None:
        self._budget = LabelBudget(series_max)
        self._clients: dict[str, _Client] = {}
        #: Families with at least one row.
        self._families: dict[str, _Family] = {}
        #: Clients beyond the budget. `expire_by` or `remove` deletes each entry.
        self._folded: dict[str, None] = {}
        #: Points that are not shown, by reason.
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(len(client.series) for client in self._clients.values())

    @property
    def folded(self) -> int:
        return len(self._folded)

    def update(self, client: str, collected: Collected, expires_at: float) -> None:
        """Show the series that a client pushed until `expires_at`, or until its next push."""
        self.dropped.update(collected.dropped)
        known = self._clients.get(client)
        before = {} if known is None else known.series
        samples = {
            key: sample for key, sample in collected.samples.items() if self._fits(key, sample)
        }
        kept = {key: True for key, is_delta in before.items() if is_delta and key not in samples}
        if not self._budget.reserve(client, len(samples) + len(kept)):
            if known is None:
                self.dropped["budget"] += len(samples)
                self._folded[client] = None
                return
            # The client keeps the series that it has.
            self.dropped["budget"] += len(samples.keys() - before.keys())
            samples = {key: sample for key, sample in samples.items() if key in before}
        self._folded.pop(client, None)
        if known is None:
            known = self._clients[client] = _Client()
        known.expires_at = expires_at
        for key in before:
            if key not in samples and key not in kept:
                self._remove(key)
        for key, sample in samples.items():
            self._put(key, sample, is_known=before.get(key, False))
        known.series = kept | {key: sample.is_delta for key, sample in samples.items()}

    def expire_by(self, client: str, expires_at: float) -> None:
        """Remove the series of a disconnected client at `expires_at` at the latest."""
        known = self._clients.get(client)
        if known is not None:
            known.expires_at = min(known.expires_at, expires_at)
        self._folded.pop(client, None)

    def remove(self, client: str) -> None:
        known = self._clients.pop(client, None)
        if known is not None:
            for key in known.series:
                self._remove(key)
            self._budget.release(client)
        self._folded.pop(client, None)

    def expire(self, now: float) -> None:
        for client in [name for name, each in self._clients.items() if each.expires_at <= now]:
            self.remove(client)

    def families(self) -> Iterator[Family]:
        """Yield all series. Rows are copied, because pushes continue meanwhile."""
        for name, family in list(self._families.items()):
            names = sorted({label for labels in family.rows for label, _ in labels})
            yield Family(
                name,
                family.kind,
                "Pushed by clients (KIP-714).",
                tuple(names),
                list(_rows(names, family.rows.items())),
            )

    def _fits(self, key: SeriesKey, sample: Sample) -> bool:
        """Return whether no family of another kind has the same name."""
        family = self._families.get(key[0])
        if family is None or family.kind == sample.kind:
            return True
        self.dropped["kind"] += 1
        return False

    def _put(self, key: SeriesKey, sample: Sample, *, is_known: bool) -> None:
        name, labels = key
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(sample.kind)
        value = sample.value
        if sample.is_delta and is_known:
            value += family.rows[labels]
        family.rows[labels] = value

    def _remove(self, key: SeriesKey) -> None:
        name, labels = key
        family = self._families[name]
        del family.rows[labels]
        if not family.rows:
            del self._families[name]


def _rows(
    names: Iterable[str], rows: Iterable[tuple[Labels, float]]
) -> Iterator[tuple[tuple[str, ...], float]]:
    for labels, value in rows:
        found = dict(labels)
        # Prometheus treats an empty label as an absent one.
        yield tuple(found.get(name, "") for name in names), value


def _family_name(name: str, kind: Kind) -> str | None:
    """Return the name that Prometheus sees; None if the name is too long or nothing is left."""
    return None if len(name) > NAME_CHARACTERS_MAX else _short_family_name(name, kind)


def _label_name(key: str) -> str | None:
    """Return the name of a label; None if the key is too long or nothing is left."""
    return None if len(key) > NAME_CHARACTERS_MAX else _short_label_name(key)


# Cached, because clients send the same names with every push. Names are bounded by the caller.
@lru_cache(maxsize=4096)
def _short_family_name(name: str, kind: Kind) -> str | None:
    legal = _ILLEGAL.sub("_", name.removeprefix(_KAFKA_PREFIX)).strip("_")
    if not legal:
        return None
    if kind == "counter" and not legal.endswith(_COUNTER_SUFFIX):
        legal += _COUNTER_SUFFIX
    return PREFIX + legal


@lru_cache(maxsize=4096)
def _short_label_name(key: str) -> str | None:
    # Names that begin with two underscores are Prometheus' own.
    legal = _ILLEGAL.sub("_", key).strip("_")
    if not legal:
        return None
    return f"_{legal}" if legal[0].isdigit() else legal
