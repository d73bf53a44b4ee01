"""Subscriptions to metrics of clients: validation, and which subscriptions a client matches. Pure.

A subscription is what `kafka-client-metrics.sh` creates: prefixes of metric names, an interval, and
patterns that the client's attributes must match as a whole. Patterns run on an automaton without
backtracking, so look-around and back references are rejected; Kafka accepts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millstream.groups.subscription.pattern import TopicPattern, compile_pattern
from millstream.groups.subscription.pattern_syntax import TEXT_ALPHABET, as_text
from millstream.metadata.cluster_record import Configs
from millstream.model.client_metrics_config import (
    INTERVAL_MS_DEFAULT,
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    definitions,
)
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.crc import crc32c

ALL_METRICS: Final = "*"
NAME_CHARACTERS_MAX: Final = 249

#: The attributes that patterns may match.
ATTRIBUTES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


class TelemetrySubscription(NamedTuple):
    """The metrics that matching clients push, and how often."""

    metrics: tuple[str, ...]
    interval_ms: int
    #: By attribute; a client matches if all of them do.
    patterns: Mapping[str, TopicPattern]

    def matches(self, attributes: Mapping[str, str | None]) -> bool:
        for name, pattern in self.patterns.items():
            value = attributes[name]
            if value is None or not _matches(pattern, value):
                return False
        return True


class PushPlan(NamedTuple):
    """What one client pushes: the union of all subscriptions that it matches."""

    #: Sorted, so that every broker computes the same id; only `*` for all metrics.
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int


def parse_subscription(name: str, configs: Configs) -> TelemetrySubscription:
    """Return the subscription; raise INVALID_REQUEST or INVALID_CONFIG where Kafka does."""
    check_name(name)
    for setting in configs:
        if setting not in definitions:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown client metrics configuration: {setting[:NAME_CHARACTERS_MAX]}",
            )
    interval_ms = INTERVAL_MS_DEFAULT
    if "interval.ms" in configs:
        interval_ms = _interval_ms(configs["interval.ms"])
    return TelemetrySubscription(
        parse_list("metrics", configs), interval_ms, _patterns(parse_list("match", configs))
    )


def check_name(name: str) -> None:
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    if len(name) > NAME_CHARACTERS_MAX:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"a subscription's name may have {NAME_CHARACTERS_MAX} characters, not {len(name)}",
        )


def parse_list(setting: str, configs: Configs) -> tuple[str, ...]:
    """Return the elements of a list setting; raise INVALID_CONFIG if one of them is empty."""
    elements: tuple[str, ...] = definitions[setting].parse(configs.get(setting, ""))
    if not all(elements):
        raise _invalid(f"Configuration '{setting}' values must not be empty.")
    return elements


def push_plan(
    subscriptions: Iterable[TelemetrySubscription],
    attributes: Mapping[str, str | None],
    instance_id: bytes,
) -> PushPlan:
    """Return the union of the metrics, and the shortest interval, of matching subscriptions."""
    metrics: dict[str, None] = {}
    interval_ms = INTERVAL_MS_DEFAULT
    for subscription in subscriptions:
        if subscription.matches(attributes):
            metrics.update(dict.fromkeys(subscription.metrics))
            interval_ms = min(interval_ms, subscription.interval_ms)
    names = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
    text = "\0".join([*names, str(interval_ms)]).encode()
    # Differs between clients, so that no client can push under the id of another.
    number = crc32c(text + instance_id)
    return PushPlan(names, interval_ms, number - (1 << 32) if number >= 1 << 31 else number)


def _interval_ms(text: str) -> int:
    try:
        interval_ms = int(definitions["interval.ms"].parse(text))
    except ValueError as error:
        raise _invalid(
            f"Invalid value {text[:80]} for configuration interval.ms: Not a number of type INT"
        ) from error
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for interval.ms, interval must be between "
            f"{INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour)",
        )
    return interval_ms


def _patterns(elements: Iterable[str]) -> dict[str, TopicPattern]:
    patterns: dict[str, TopicPattern] = {}
    for element in elements:
        name, separator, pattern = element.partition("=")
        name, pattern = name.strip(), pattern.strip()
        if not separator or not pattern or "=" in pattern or name not in ATTRIBUTES:
            raise _illegal(element)
        try:
            patterns[name] = compile_pattern(pattern, TEXT_ALPHABET)
        except BrokerError as error:
            raise _illegal(element) from error
    return patterns


def _matches(pattern: TopicPattern, value: str) -> bool:
    try:
        return pattern.matches(as_text(value))
    except BrokerError:
        # The pattern needs too many steps for this value: such a client is not subscribed.
        return False


def _illegal(element: str) -> BrokerError:
    return _invalid(f"Illegal client matching pattern: {element[:NAME_CHARACTERS_MAX]}")


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, message)
