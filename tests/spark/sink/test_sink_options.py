"""Options and columns that the sink accepts and rejects."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from millstream.records.compression import CompressionType
from millstream.spark.error import OptionError, SettingError
from millstream.spark.sink.input_column import plan_columns
from millstream.spark.sink.sink_options import DeliveryGuarantee, sink_options

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ({"value": StringType()}, None, "topic option required"),
        ({"key": StringType()}, "t", "Required attribute 'value' not found"),
        ({"value": IntegerType()}, "t", "value attribute type must be a STRING or BINARY"),
        ({"value": StringType(), "partition": LongType()}, "t", "partition attribute type"),
        ({"value": StringType(), "headers": StringType()}, "t", "headers attribute type must be"),
        ({"value": StringType(), "topic": BinaryType()}, None, "topic attribute type must be"),
        ({"value": StringType(), "timestamp": LongType()}, "t", "timestamp attribute type"),
        ({"value": StringType(), "Value": StringType()}, "t", "two columns named 'value'"),
    ],
)
def test_columns_that_cannot_be_written(
    columns: dict[str, DataType], topic: str | None, text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        plan_columns(schema(**columns), topic)


def test_columns_with_other_names_are_ignored() -> None:
    plan = plan_columns(schema(offset=LongType(), Value=StringType(), extra=LongType()), "t")
    assert (plan.value, plan.key, plan.partition) == (1, -1, -1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delivery": "once"}, "delivery must be exactly-once or at-least-once"),
        ({"topics": "u"}, "did you mean topic"),
        ({"kafka.linger": "5"}, "no option kafka.linger"),
        ({"kafka.acks": "1"}, "kafka.acks must be one of"),
        ({"kafka.batch.size": "1"}, "kafka.batch.size must be a whole number from 1024"),
        ({"kafka.compression.type": "brotli"}, "kafka.compression.type must be one of"),
        ({"kafka.value.serializer": "x"}, "encode them in the query"),
        ({"txnAppId": "u"}, "set together"),
        ({"txnAppId": "u", "txnVersion": "-1"}, "set together"),
    ],
)
def test_ignored_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        sink_options(SERVERS | options)


def test_options_are_read_in_any_case() -> None:
    chosen = sink_options(
        SERVERS
        | {
            "Topic": "t",
            "DELIVERY": "At-Least-Once",
            "kafka.compression.type": "zstd",
            "txnappid": "app",
            "TXNVERSION": "7",
            "kafka.linger.ms": "5",
            "checkpointLocation": "/x",
        }
    )
    assert (chosen.topic, chosen.delivery, chosen.codec) == (
        "t",
        DeliveryGuarantee.AT_LEAST_ONCE,
        CompressionType.ZSTD,
    )
    assert chosen.application == ("app", 7)
