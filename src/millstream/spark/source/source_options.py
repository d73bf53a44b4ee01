"""The options of the source, with the names of Spark's Kafka connector. Pure.

Spark's options are case-insensitive, so names arrive in lower case. Every error names the option as
the documentation spells it, and the allowed values. Options of the connector's own implementation
(poll timeouts, the prefix of its group ids) are accepted and ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millstream.model.topic import TopicPartition
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.connection_setting import ConnectionSettings
from millstream.spark.error import OptionError
from millstream.spark.kafka_option import kafka_properties, pop_connection
from millstream.spark.source.offset_position import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetPosition,
    PositionKind,
    parse_assignment,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"

#: The options and their meanings, in the order of the reference.
OPTIONS: Final[Mapping[str, str]] = {
    "subscribe": "The topics to read, with commas between them.",
    "subscribePattern": "A regular expression; topics whose whole name matches are read.",
    "assign": 'The partitions to read, as JSON: `{"orders": [0, 1]}`.',
    "startingOffsets": "Where a new query starts: `earliest`, `latest` or JSON with an offset for"
    ' each partition (`{"orders": {"0": 23, "1": -2}}`; -2 is earliest, -1 is latest). By default'
    " `latest` for streams, `earliest` for batches.",
    "startingTimestamp": "Start at the first record at or after this time, in ms since the epoch.",
    "startingOffsetsByTimestamp": "The same for each partition, as JSON.",
    "startingOffsetsByTimestampStrategy": "If no record is that new: `error` (default) or"
    " `latest`.",
    "endingOffsets": "Where a batch ends: `latest` (default) or JSON with offsets.",
    "endingTimestamp": "A batch ends before the first record at or after this time.",
    "endingOffsetsByTimestamp": "The same for each partition, as JSON.",
    "maxOffsetsPerTrigger": "Maximum number of offsets in a micro-batch.",
    "minOffsetsPerTrigger": "A micro-batch starts once this many offsets are available, or after"
    " `maxTriggerDelay`.",
    "maxTriggerDelay": "Maximum time that a micro-batch waits for `minOffsetsPerTrigger`. By"
    " default `15m`.",
    "minPartitions": "Minimum number of Spark partitions; large Kafka partitions are split.",
    "maxRecordsPerPartition": "Maximum number of records in a Spark partition.",
    "includeHeaders": "Whether the column `headers` is added.",
    "failOnDataLoss": "Whether the query stops if records that it has not read are gone. By"
    " default `true`.",
    "columns": "The columns to read, with commas between them. The others are not decoded.",
}
#: Options of the connector's own implementation.
_IDLE_NAMES: Final = (
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
#: Settings that the connector rejects too, with the option to use instead.
_REFUSED_KAFKA: Final = {
    "auto.offset.reset": "use startingOffsets instead",
    "enable.auto.commit": "the source commits progress after each batch if kafka.group.id is set",
    "key.deserializer": "keys are binary: decode them in the query",
    "value.deserializer": "values are binary: decode them in the query",
    "interceptor.classes": "the source does not support interceptors",
}
#: Settings of Kafka's consumer that have no effect on this source.
_IDLE_KAFKA: Final = frozenset(
    {
        "allow.auto.create.topics",
        "check.crcs",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "exclude.internal.topics",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    }
)
#: `kafka.*` options that have an effect, without the prefix.
KAFKA_OPTIONS: Final = (
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "default.api.timeout.ms",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "https.ca.location",
    "isolation.level",
    "max.partition.fetch.bytes",
    "request.timeout.ms",
    "retry.backoff.ms",
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
)
_DURATION: Final = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)?\s*")
_DURATION_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_TRIGGER_DELAY_MS: Final = 15 * 60_000
#: Fits a processor's cache while it is decoded.
_FETCH_BYTES: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics or partitions that the query reads. One of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def reads(self, partition: TopicPartition) -> bool:
        """Return whether the query reads this partition."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition.topic in self.topics or partition in self.partitions


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Settings of Fetch requests."""

    is_committed: bool = False
    wait_ms_max: int = 500
    bytes_min: int = 1
    bytes_max: int = _FETCH_BYTES


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a reader. Can be pickled."""

    connection: ConnectionSettings
    subscription: TopicSelection
    starting: OffsetPosition
    ending: OffsetPosition
    is_timestamp_required: bool = True
    fetch: FetchSettings = field(default_factory=FetchSettings)
    group_id: str | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    trigger_delay_ms_max: int = _TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True


def column_names(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that the options select, in that order."""
    left = _lower(options)
    every = (*COLUMNS, HEADERS)
    text = left.get("columns")
    if text is None:
        return every if _boolean(left, "includeHeaders", default=False) else COLUMNS
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in every]
    if unknown or not names or len(set(names)) != len(names):
        raise OptionError(f"columns must be some of {', '.join(every)}, not {text!r}")
    return names


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.read`. Raises OptionError."""
    left = _lower(options)
    parsed = _parse(left, "earliest")
    _refuse(
        parsed.starting,
        PositionKind.LATEST,
        LATEST_OFFSET,
        "a batch cannot start at the latest offset",
    )
    _refuse(
        parsed.ending,
        PositionKind.EARLIEST,
        EARLIEST_OFFSET,
        "a batch cannot end at the earliest offset",
    )
    return parsed


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.readStream`. Raises OptionError."""
    left = _lower(options)
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if name.lower() in left:
            raise OptionError(f"{name} is for batches: a stream has no end")
    parsed = _parse(left, "latest")
    least, most = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({least}) must not exceed maxOffsetsPerTrigger ({most})"
        )
    return parsed


def _parse(left: dict[str, str], start: str) -> SourceOptions:
    _check_names(left)
    kafka = kafka_properties(left)
    connection = pop_connection(kafka)
    fetch = _fetch(kafka)
    group_id = kafka.pop("group.id")
    _check_kafka(kafka.remaining)
    return SourceOptions(
        connection=connection,
        subscription=_subscription(left),
        starting=_position(left, "starting", start),
        ending=_position(left, "ending", "latest"),
        is_timestamp_required=_is_timestamp_required(left),
        fetch=fetch,
        group_id=group_id or None,
        max_offsets_per_trigger=_number(left, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_number(left, "minOffsetsPerTrigger"),
        trigger_delay_ms_max=_duration_ms(left, "maxTriggerDelay", _TRIGGER_DELAY_MS),
        min_partitions=_number(left, "minPartitions"),
        max_records_per_partition=_number(left, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(left, "failOnDataLoss", default=True),
    )


def _fetch(kafka: ClientProperties) -> FetchSettings:
    isolations = ("read_uncommitted", "read_committed")
    isolation = kafka.pop_choice("isolation.level", isolations[0], isolations)
    sizes = ("fetch.max.bytes", "max.partition.fetch.bytes")
    return FetchSettings(
        is_committed=isolation == "read_committed",
        wait_ms_max=kafka.pop_number("fetch.max.wait.ms", 500, 0),
        bytes_min=kafka.pop_number("fetch.min.bytes", 1, 0),
        bytes_max=min(
            (kafka.pop_number(name, 1, 1) for name in sizes if name in kafka.remaining),
            default=_FETCH_BYTES,
        ),
    )


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _check_names(left: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*OPTIONS, *_IDLE_NAMES)}
    for name in left:
        if name not in known and not name.startswith("kafka."):
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {known[near[0]]}?)" if near else ""
            raise OptionError(
                f"{name} is not an option of the source{hint}: the options are"
                f" {', '.join(OPTIONS)}, and kafka.* for connections"
            )


def _check_kafka(left: Mapping[str, str]) -> None:
    """Raise OptionError for `kafka.*` options that the source does not know."""
    for name in left:
        if name in _REFUSED_KAFKA:
            raise OptionError(f"kafka.{name} cannot be set: {_REFUSED_KAFKA[name]}")
        if name not in _IDLE_KAFKA and not name.startswith(("metric", "ssl.", "sasl.")):
            near = difflib.get_close_matches(name, [*KAFKA_OPTIONS, *_IDLE_KAFKA], 1)
            hint = f": did you mean kafka.{near[0]}?" if near else ""
            raise OptionError(f"kafka.{name} is not known{hint}")


def _subscription(left: Mapping[str, str]) -> TopicSelection:
    ways = ("subscribe", "subscribePattern", "assign")
    given = [name for name in ways if name.lower() in left]
    if len(given) != 1:
        said = f"{' and '.join(given)} were given" if given else "none was given"
        raise OptionError(f"exactly one of {', '.join(ways)} must be set: {said}")
    text = left[given[0].lower()]
    if given == ["assign"]:
        return TopicSelection(partitions=parse_assignment("assign", text))
    if given == ["subscribe"]:
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise OptionError("subscribe must name a topic, or several with commas between them")
        return TopicSelection(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(
            f"subscribePattern {text!r} is not a regular expression: {error}"
        ) from error
    return TopicSelection(pattern=text)


def _position(left: Mapping[str, str], side: str, default: str) -> OffsetPosition:
    """Parse the start or end position, with the connector's precedence of the three options."""
    name = f"{side}Timestamp"
    if name.lower() in left:
        return parse_timestamp(name, left[name.lower()])
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in left:
        return parse_timestamps(name, left[name.lower()])
    name = f"{side}Offsets"
    return parse_offsets(name, left.get(name.lower(), default))


def _is_timestamp_required(left: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    text = left.get(name.lower(), "error").lower()
    if text not in ("error", "latest"):
        raise OptionError(f"{name} must be error or latest, not {text!r}")
    return text == "error"


def _refuse(position: OffsetPosition, kind: PositionKind, offset: int, why: str) -> None:
    if position.kind is kind:
        raise OptionError(f"{position.option} is {kind.value}, but {why}")
    if position.kind is PositionKind.OFFSETS and offset in position.values.values():
        raise OptionError(f"{position.option} has {offset} ({kind.value}), but {why}")


def _number(left: Mapping[str, str], name: str) -> int | None:
    text = left.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) == 0:
        raise OptionError(f"{name} must be a whole number above 0, not {text!r}")
    return int(text)


def _boolean(left: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = left.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _duration_ms(left: Mapping[str, str], name: str, default: int) -> int:
    text = left.get(name.lower())
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    if match is None:
        raise OptionError(f"{name} must be a time such as 500ms, 30s or 15m, not {text!r}")
    return int(match[1]) * _DURATION_MS[match[2] or "ms"]
