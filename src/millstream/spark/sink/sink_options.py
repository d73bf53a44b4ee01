"""The options of the sink, with the names of Spark's Kafka connector and Kafka's producer. Pure.

Spark's options are case-insensitive, so names arrive in lower case.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from millstream.protocol.connection_setting import ConnectionSettings
from millstream.records.compression import CompressionType
from millstream.spark.error import OptionError
from millstream.spark.kafka_option import PREFIX, kafka_properties, pop_connection

COMMIT_TOPIC_DEFAULT: Final = "__millstream_spark_commits"
#: The options and their meanings, in the order of the reference.
OPTIONS: Final[Mapping[str, str]] = {
    "topic": "The topic of all rows. It takes precedence over the column `topic`.",
    "delivery": "`exactly-once` (default) or `at-least-once`.",
    "commitTopic": "The compacted topic with the decisions of exactly-once queries. By default"
    f" `{COMMIT_TOPIC_DEFAULT}`.",
    "txnAppId": "Together with `txnVersion`: a batch write that takes effect once for each pair.",
    "txnVersion": "A number that grows, such as the batch id of `foreachBatch`.",
}
#: Options of Spark and of the source. They are ignored, as programs share one set of options.
_IDLE_NAMES: Final = frozenset({"checkpointlocation", "queryname", "path", "includeheaders"})
#: Settings of Kafka's producer that have no effect on this sink. They are ignored.
_IDLE_KAFKA: Final = frozenset(
    {
        "buffer.memory",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "send.buffer.bytes",
    }
)
_REFUSED_KAFKA: Final = {
    "key.serializer": "keys are strings or binary: encode them in the query",
    "value.serializer": "values are strings or binary: encode them in the query",
    "transactional.id": "the sink assigns transactional ids to its tasks",
    "interceptor.classes": "the sink does not support interceptors",
    "partitioner.class": "add a partition column",
}
#: `kafka.*` options that have an effect, without the prefix. Those of connections come on top.
KAFKA_OPTIONS: Final = (
    "acks",
    "batch.size",
    "bootstrap.servers",
    "client.id",
    "compression.type",
    "transaction.timeout.ms",
)
_CODECS: Final = {codec.name.lower(): codec for codec in CompressionType}
#: Slightly below the broker's default limit for a batch (1 MiB and some bytes).
_BATCH_BYTES: Final = 1_000_000
_BATCH_BYTES_MIN: Final = 1024
#: The broker's default for transaction.max.timeout.ms.
_TIMEOUT_MS: Final = 900_000


class DeliveryGuarantee(Enum):
    """How often a row is visible to read_committed consumers after failures."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options. They are pickled and sent to executors."""

    connection: ConnectionSettings
    topic: str | None = None
    delivery: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE
    commit_topic: str = COMMIT_TOPIC_DEFAULT
    #: Application and version of a batch write that takes effect once.
    application: tuple[str, int] | None = None
    codec: CompressionType = CompressionType.NONE
    batch_bytes: int = _BATCH_BYTES
    #: How long a task may write before the coordinator aborts its transaction.
    transaction_timeout_ms: int = _TIMEOUT_MS


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options. Raises OptionError that names the wrong option."""
    given = {name.lower(): value for name, value in options.items()}
    kafka = kafka_properties(given)
    connection = pop_connection(kafka)
    codec = kafka.pop_choice("compression.type", "none", tuple(_CODECS))
    kafka.pop_choice("acks", "all", ("all", "-1"))
    made = SinkOptions(
        connection=connection,
        topic=given.get("topic"),
        delivery=_delivery(given),
        commit_topic=given.get("committopic", COMMIT_TOPIC_DEFAULT),
        application=_application(given),
        codec=_CODECS[codec],
        batch_bytes=kafka.pop_number("batch.size", _BATCH_BYTES, _BATCH_BYTES_MIN),
        transaction_timeout_ms=kafka.pop_number("transaction.timeout.ms", _TIMEOUT_MS, 1),
    )
    _check_known(given, kafka.remaining)
    return made


def _delivery(given: Mapping[str, str]) -> DeliveryGuarantee:
    text = given.get("delivery", DeliveryGuarantee.EXACTLY_ONCE.value)
    try:
        return DeliveryGuarantee(text.lower())
    except ValueError:
        choices = " or ".join(each.value for each in DeliveryGuarantee)
        raise OptionError(f"delivery must be {choices}, not {text!r}") from None


def _application(given: Mapping[str, str]) -> tuple[str, int] | None:
    name, version = given.get("txnappid"), given.get("txnversion")
    if name is None and version is None:
        return None
    if not name or version is None or not version.isdigit():
        raise OptionError(
            "txnAppId (a name) and txnVersion (a whole number that grows) must be set together"
        )
    return name, int(version)


def _check_known(given: Mapping[str, str], left: Mapping[str, str]) -> None:
    for name in left:
        if name in _REFUSED_KAFKA:
            raise OptionError(f"{PREFIX}{name} cannot be set: {_REFUSED_KAFKA[name]}")
        if name not in _IDLE_KAFKA:
            raise _unknown(PREFIX + name, [PREFIX + known for known in KAFKA_OPTIONS])
    known = {name.lower() for name in OPTIONS}
    for name in given:
        if not name.startswith(PREFIX) and name not in known and name not in _IDLE_NAMES:
            raise _unknown(name, list(OPTIONS))


def _unknown(name: str, known: list[str]) -> OptionError:
    close = difflib.get_close_matches(name, known, 1)
    hint = f": did you mean {close[0]}?" if close else f": the sink knows {', '.join(known)}"
    return OptionError(f"there is no option {name}{hint}")
