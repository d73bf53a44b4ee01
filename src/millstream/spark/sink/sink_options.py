"""The options of the sink, named as Spark's Kafka connector and Kafka's producer name them. Pure.

    topic               where rows without a topic column go; goes before the column
    delivery            exactly-once (default) or at-least-once
    commitTopic         compacted topic that keeps the decisions of exactly-once queries
    txnAppId            with txnVersion: a batch write that is done at most once for the pair,
    txnVersion          which grows; for `foreachBatch`, whose batch id it can be
    kafka.*             of the connection, and of the producer

Names come in lower case: Spark's options don't know case.
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
_NAMES: Final = ("topic", "delivery", "commitTopic", "txnAppId", "txnVersion")
#: Spark's own, and those of the source: one set of options is often used for both.
_IDLE_NAMES: Final = frozenset({"checkpointlocation", "queryname", "path", "includeheaders"})
#: Of a producer that sends by threads of its own, or that could send twice.
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
    "transactional.id": "the sink has ids of its own for its tasks",
    "interceptor.classes": "there are no interceptors",
    "partitioner.class": "bring a partition column",
}
_KNOWN_KAFKA: Final = (
    "acks",
    "batch.size",
    "bootstrap.servers",
    "client.id",
    "compression.type",
    "transaction.timeout.ms",
)
_CODECS: Final = {codec.name.lower(): codec for codec in CompressionType}
#: The broker's own limit for a batch is 1 MiB and some bytes.
_BATCH_BYTES: Final = 1_000_000
_BATCH_BYTES_MIN: Final = 1024
#: The longest that brokers grant unless they are told otherwise.
_TIMEOUT_MS: Final = 900_000


class DeliveryGuarantee(Enum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Can be pickled, and goes to executors."""

    connection: ConnectionSettings
    topic: str | None = None
    delivery: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE
    commit_topic: str = COMMIT_TOPIC_DEFAULT
    #: Application and version of a batch write that is not to be repeated.
    application: tuple[str, int] | None = None
    codec: CompressionType = CompressionType.NONE
    batch_bytes: int = _BATCH_BYTES
    #: How long a task may write before its transaction is given up.
    transaction_timeout_ms: int = _TIMEOUT_MS


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises OptionError, which names the option."""
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
            "txnAppId (a name) and txnVersion (a whole number that grows) are given together"
        )
    return name, int(version)


def _check_known(given: Mapping[str, str], left: Mapping[str, str]) -> None:
    for name in left:
        if name in _REFUSED_KAFKA:
            raise OptionError(f"{PREFIX}{name} cannot be set: {_REFUSED_KAFKA[name]}")
        if name not in _IDLE_KAFKA:
            raise _unknown(PREFIX + name, [PREFIX + known for known in _KNOWN_KAFKA])
    known = {name.lower() for name in _NAMES}
    for name in given:
        if not name.startswith(PREFIX) and name not in known and name not in _IDLE_NAMES:
            raise _unknown(name, list(_NAMES))


def _unknown(name: str, known: list[str]) -> OptionError:
    close = difflib.get_close_matches(name, known, 1)
    hint = f": did you mean {close[0]}?" if close else f": the sink knows {', '.join(known)}"
    return OptionError(f"there is no option {name}{hint}")
