"""The settings of a topic: names, types, defaults and limits, all Kafka 4.x's.

`TopicConfig` has the typed values in force for one topic. Only the overrides are stored and sent,
as text; `TopicConfig.from_strings` parses them. Kafka's settings that would have no effect here do
not exist: `preallocate` and tiered storage.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from millstream.model.definition import (
    ConfigScope,
    ConfigType,
    Definition,
    Synonym,
    definitions_of,
    setting,
)
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT64_MAX

#: Settings without an effect. They are ignored in stored metadata.
RETIRED: Final = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "log.message.downconversion.enable",
        "log.preallocate",
        "message.downconversion.enable",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
)
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

_THROTTLED_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}\Z")
_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST


def _check_throttled_replicas(value: tuple[str, ...]) -> None:
    if value != ("*",) and not all(map(_THROTTLED_REPLICA.match, value)):
        raise ValueError("'*' for every replica, or a comma-separated list of partition:broker")


def _check_gzip_level(value: int) -> None:
    if value != -1 and not 1 <= value <= 9:
        raise ValueError("a whole number from 1 to 9, or -1 for the codec's own default")


def _from(*names: str | Synonym) -> tuple[Synonym, ...]:
    return tuple(Synonym(name) if isinstance(name, str) else name for name in names)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The values in force for one topic. `TopicConfig()` has Kafka's defaults, except for
    `min_insync_replicas`: with None each partition derives it from its replicas.

    Equal configs are shared: 100,000 topics without overrides hold one object.
    """

    cleanup_policy: frozenset[str] = setting(
        _LIST,
        frozenset({"delete"}),
        "What happens to old records: whole segments are deleted, or only the last record of "
        "each key is kept, or both. An empty list keeps everything.",
        choices=("compact", "delete"),
        container=frozenset,
        synonyms=_from("log.cleanup.policy"),
    )
    compression_type: str = setting(
        _STRING,
        "producer",
        "Codec that batches are stored with; 'producer' keeps the one each producer chose.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        synonyms=_from("compression.type"),
    )
    compression_gzip_level: int = setting(
        _INT,
        -1,
        "Level for gzip, where the broker compresses.",
        check=_check_gzip_level,
        synonyms=_from("compression.gzip.level"),
    )
    compression_lz4_level: int = setting(
        _INT,
        9,
        "Level for lz4, where the broker compresses.",
        minimum=1,
        maximum=17,
        synonyms=_from("compression.lz4.level"),
    )
    compression_zstd_level: int = setting(
        _INT,
        3,
        "Level for zstd, where the broker compresses.",
        minimum=-131072,
        maximum=22,
        synonyms=_from("compression.zstd.level"),
    )
    delete_retention_ms: int = setting(
        _LONG,
        DAY_MS,
        "How long a compacted topic keeps the marker of a deleted key for readers that lag.",
        minimum=0,
        synonyms=_from("log.cleaner.delete.retention.ms"),
    )
    file_delete_delay_ms: int = setting(
        _LONG,
        60_000,
        "Time between taking a file out of the log and removing it from the disk.",
        minimum=0,
        synonyms=_from("log.segment.delete.delay.ms"),
    )
    flush_messages: int = setting(
        _LONG,
        INT64_MAX,
        "Force the log to stable storage after this many records.",
        minimum=1,
        synonyms=_from("log.flush.interval.messages"),
    )
    flush_ms: int = setting(
        _LONG,
        INT64_MAX,
        "Force the log to stable storage when its oldest unflushed record is this old.",
        minimum=0,
        synonyms=_from("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        _LIST,
        (),
        "Followers that catch up throttled, as partition:broker pairs.",
        check=_check_throttled_replicas,
    )
    index_interval_bytes: int = setting(
        _INT,
        4096,
        "Bytes of log between two entries of its indexes.",
        minimum=0,
        synonyms=_from("log.index.interval.bytes"),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        _LIST,
        (),
        "Leaders that serve followers throttled, as partition:broker pairs.",
        check=_check_throttled_replicas,
    )
    max_compaction_lag_ms: int = setting(
        _LONG,
        INT64_MAX,
        "Longest time that a record may wait before its segment is compacted.",
        minimum=1,
        synonyms=_from("log.cleaner.max.compaction.lag.ms"),
    )
    max_message_bytes: int = setting(
        _INT,
        1024 * 1024 + 12,
        "Largest record batch accepted, after compression.",
        minimum=0,
        synonyms=_from("message.max.bytes"),
    )
    message_timestamp_after_max_ms: int = setting(
        _LONG,
        HOUR_MS,
        "How far a record's own timestamp may lie in the broker's future.",
        minimum=0,
        synonyms=_from("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = setting(
        _LONG,
        INT64_MAX,
        "How far a record's own timestamp may lie in the broker's past.",
        minimum=0,
        synonyms=_from("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = setting(
        _STRING,
        "CreateTime",
        "Whose time a record carries: its producer's, or the broker's at the append.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=_from("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = setting(
        _DOUBLE,
        0.5,
        "Share of a log that must be uncompacted before it is compacted again.",
        minimum=0,
        maximum=1,
        synonyms=_from("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = setting(
        _LONG,
        0,
        "Shortest time before compaction may remove a record.",
        minimum=0,
        synonyms=_from("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int | None = setting(
        _INT,
        None,
        "In-sync replicas below which acks=all is rejected, or the number of replicas if that is"
        " less. By default 2 for three replicas and more, else 1.",
        minimum=1,
        synonyms=_from("min.insync.replicas"),
    )
    retention_bytes: int = setting(
        _LONG,
        -1,
        "Size above which a partition's oldest segments are deleted; -1 is no limit.",
        synonyms=_from("log.retention.bytes"),
    )
    retention_ms: int = setting(
        _LONG,
        7 * DAY_MS,
        "Age after which segments are deleted; -1 is no limit.",
        minimum=-1,
        synonyms=_from(
            "log.retention.ms",
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    )
    segment_bytes: int = setting(
        _INT,
        1024 * 1024 * 1024,
        "Size at which a new segment is begun.",
        minimum=14,
        synonyms=_from("log.segment.bytes"),
    )
    segment_index_bytes: int = setting(
        _INT,
        10 * 1024 * 1024,
        "Largest size of a segment's index; a full index begins a new segment.",
        minimum=4,
        synonyms=_from("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = setting(
        _LONG,
        0,
        "Random time taken off segment.ms, so that segments do not all roll at once.",
        minimum=0,
        synonyms=_from("log.roll.jitter.ms", Synonym("log.roll.jitter.hours", HOUR_MS)),
    )
    segment_ms: int = setting(
        _LONG,
        7 * DAY_MS,
        "Age at which a new segment is begun, however small the last one is.",
        minimum=1,
        synonyms=_from("log.roll.ms", Synonym("log.roll.hours", HOUR_MS)),
    )
    unclean_leader_election_enable: bool = setting(
        _BOOLEAN,
        False,
        "Let a replica that is out of sync lead when no other is left, losing records.",
        synonyms=_from("unclean.leader.election.enable"),
    )

    @classmethod
    def from_strings(cls, overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
        """Return `defaults` with `overrides`; INVALID_CONFIG if one is unknown or not allowed."""
        if not overrides:
            return defaults
        return _overridden(tuple(sorted(overrides.items())), defaults)

    @property
    def compression_level(self) -> int | None:
        """The level for the topic's compression type; None if it has no levels."""
        return getattr(self, f"compression_{self.compression_type}_level", None)

    def text(self, name: str) -> str | None:
        """Return the value in force of a setting as text; None if each partition derives it."""
        definition = definitions[name]
        return definition.format(getattr(self, definition.attribute))


#: Every topic setting by name, in alphabetical order.
definitions: Final[Mapping[str, Definition]] = {
    name: dataclasses.replace(definition, scope=ConfigScope.CLUSTER_WIDE)
    for name, definition in definitions_of(TopicConfig).items()
}


def parse_override(name: str, text: str) -> Any:
    """Return the typed value of one override; INVALID_CONFIG if name or value is invalid."""
    definition = definitions.get(name)
    if definition is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, _unknown(name, definitions))
    try:
        return definition.parse(text)
    except ValueError as error:
        message = f"topic config {name}={text[:80]!r} is not allowed: expected {error}"
        raise BrokerError(ErrorCode.INVALID_CONFIG, message) from error


@lru_cache(maxsize=1024)
def _overridden(overrides: tuple[tuple[str, str], ...], defaults: TopicConfig) -> TopicConfig:
    values: dict[str, Any] = {
        name.replace(".", "_"): parse_override(name, text) for name, text in overrides
    }
    config = dataclasses.replace(defaults, **values)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        message = (
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is not allowed: expected at "
            f"most max.compaction.lag.ms, which is {config.max_compaction_lag_ms}"
        )
        raise BrokerError(ErrorCode.INVALID_CONFIG, message)
    return config


def _unknown(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"unknown topic config {name[:80]!r}{hint}"
