"""The start and end positions in options, and offsets as JSON. Pure.

The JSON has the format of Spark's Kafka connector: `{"topic": {"0": 123, "1": -2}}`, where -2 is
the earliest offset and -1 the latest; `{"topic": [0, 1]}` for `assign`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from millstream.model.topic import TopicPartition
from millstream.spark.error import OptionError

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

_OFFSETS_EXAMPLE: Final = '{"topic": {"0": 123, "1": -2}}'
_TIMESTAMPS_EXAMPLE: Final = '{"topic": {"0": 1700000000000}}'
_ASSIGN_EXAMPLE: Final = '{"topic": [0, 1]}'


class PositionKind(Enum):
    """How an option gives a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """The start or end of a query. `option` is the option that set it, for error messages."""

    option: str
    kind: PositionKind
    #: Offsets or timestamps by partition.
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int = 0

    @property
    def moves(self) -> bool:
        """Return whether the position resolves to other offsets when it is resolved later."""
        return self.kind is PositionKind.LATEST or LATEST_OFFSET in self.values.values()

    def check_partitions(self, partitions: set[TopicPartition]) -> None:
        """Raise OptionError unless a position by partition names exactly these partitions."""
        if (
            self.kind not in (PositionKind.OFFSETS, PositionKind.TIMESTAMPS)
            or set(self.values) == partitions
        ):
            return
        missing = sorted(partitions - set(self.values))
        extra = sorted(set(self.values) - partitions)
        parts = []
        if missing:
            parts.append(f"lacks {_names(missing)}")
        if extra:
            parts.append(f"has {_names(extra)}, which is not read")
        raise OptionError(
            f"{self.option} must name exactly the partitions that are read: it"
            f" {' and '.join(parts)}. -2 stands for earliest, -1 for latest"
        )


def parse_offsets(option: str, text: str) -> OffsetPosition:
    """Parse `earliest`, `latest`, or offsets by partition."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return OffsetPosition(option, PositionKind(word))
    values = _by_partition(option, text, _OFFSETS_EXAMPLE)
    for key, value in values.items():
        if value < EARLIEST_OFFSET:
            raise OptionError(f"{option} has offset {value} for {key}: the least is -2 (earliest)")
    return OffsetPosition(option, PositionKind.OFFSETS, values)


def parse_timestamps(option: str, text: str) -> OffsetPosition:
    """Parse timestamps by partition, in milliseconds."""
    values = _by_partition(option, text, _TIMESTAMPS_EXAMPLE)
    for key, value in values.items():
        if value < 0:
            raise OptionError(f"{option} has timestamp {value} for {key}: it must not be negative")
    return OffsetPosition(option, PositionKind.TIMESTAMPS, values)


def parse_timestamp(option: str, text: str) -> OffsetPosition:
    """Parse one timestamp for all partitions, in milliseconds."""
    if not text.strip().isdigit():
        raise OptionError(f"{option} must be a time in milliseconds since 1970, not {text!r}")
    return OffsetPosition(option, PositionKind.TIMESTAMP, timestamp_ms=int(text))


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse the partitions of `assign`."""
    found = []
    for topic, partitions in _object(option, text, _ASSIGN_EXAMPLE).items():
        if not isinstance(partitions, list) or not all(map(_is_partition, partitions)):
            raise OptionError(f"{option} must be like {_ASSIGN_EXAMPLE}, not {text!r}")
        found += [TopicPartition(topic, partition) for partition in partitions]
    if not found:
        raise OptionError(f"{option} names no partition; it must be like {_ASSIGN_EXAMPLE}")
    return tuple(dict.fromkeys(found))


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as the object that Spark stores in checkpoints, in a stable order."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def offsets_from_json(value: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return the offsets of an object that `offsets_to_json` made."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def _by_partition(option: str, text: str, example: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{option} must be like {example}, not {text!r}")
        for partition, value in partitions.items():
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if not partition.isdigit() or not is_number:
                raise OptionError(
                    f"{option} has {json.dumps({partition: value})} for topic {topic}: a partition"
                    f" and a whole number are needed, like {example}"
                )
            found[TopicPartition(topic, int(partition))] = value
    return found


def _object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        words = " earliest, latest or" if example == _OFFSETS_EXAMPLE else ""
        raise OptionError(
            f"{option} must be{words} JSON like {example}, not {text!r}: {error}"
        ) from error
    if not isinstance(value, dict):
        raise OptionError(f"{option} must be JSON like {example}, not {text!r}")
    return value


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _names(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:5]))
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
