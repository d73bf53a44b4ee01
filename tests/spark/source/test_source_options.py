"""Parsing of options, and errors that name the option and the allowed values."""

from __future__ import annotations

import pytest

from millstream.model.topic import TopicPartition
from millstream.protocol.connection_setting import Address, Login
from millstream.spark.error import OptionError, SettingError
from millstream.spark.kafka_option import kafka_properties, pop_connection
from millstream.spark.source.offset_position import PositionKind
from millstream.spark.source.source_options import batch_options, column_names, stream_options

_BASE = {"kafka.bootstrap.servers": "one:9092,two:9093", "subscribe": "orders"}


def test_defaults_are_the_connectors() -> None:
    batch, stream = batch_options(_BASE), stream_options(_BASE)
    assert batch.connection.bootstrap == (Address("one", 9092), Address("two", 9093))
    assert (batch.starting.kind, batch.ending.kind) == (PositionKind.EARLIEST, PositionKind.LATEST)
    assert stream.starting.kind is PositionKind.LATEST
    assert batch.fail_on_data_loss
    assert not batch.fetch.is_committed


def test_names_are_case_insensitive() -> None:
    options = _BASE | {"STARTINGOFFSETS": "latest", "MinPartitions": "3"}
    parsed = stream_options(options)
    assert (parsed.starting.kind, parsed.min_partitions) == (PositionKind.LATEST, 3)


def test_offsets_by_partition() -> None:
    parsed = stream_options(_BASE | {"startingOffsets": '{"orders":{"0":23,"1":-1}}'})
    assert parsed.starting.values == {
        TopicPartition("orders", 0): 23,
        TopicPartition("orders", 1): -1,
    }


def test_timestamps_take_precedence_over_offsets() -> None:
    options = _BASE | {
        "startingTimestamp": "1000",
        "startingOffsetsByTimestamp": '{"orders":{"0":5}}',
        "startingOffsets": "earliest",
    }
    assert stream_options(options).starting.kind is PositionKind.TIMESTAMP
    del options["startingTimestamp"]
    assert stream_options(options).starting.kind is PositionKind.TIMESTAMPS


def test_kafka_options_reach_connections_and_fetches() -> None:
    parsed = batch_options(
        _BASE
        | {
            "kafka.isolation.level": "read_committed",
            "kafka.client.id": "mine",
            "kafka.client.rack": "a",
            "kafka.group.id": "group",
            "kafka.fetch.max.bytes": "1000",
            "kafka.max.poll.records": "500",
        }
    )
    assert parsed.fetch.is_committed
    assert parsed.fetch.bytes_max == 1000
    assert parsed.connection.client_id == "mine"
    assert (parsed.connection.rack, parsed.group_id) == ("a", "group")


def test_login_by_jaas_or_by_name() -> None:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="ann" password="secret";'
    )
    common = {
        "kafka.bootstrap.servers": "one:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
    }
    properties = kafka_properties(common | {"kafka.sasl.jaas.config": jaas})
    by_jaas = pop_connection(properties)
    by_name = pop_connection(
        kafka_properties(common | {"kafka.sasl.username": "ann", "kafka.sasl.password": "secret"})
    )
    assert by_jaas.login == by_name.login == Login("SCRAM-SHA-512", "ann", "secret")
    assert by_jaas.tls is not None
    assert properties.remaining == {}
    assert "secret" not in repr(by_jaas)


_WRONG = [
    ({"startingOffset": "earliest"}, "startingoffset is not an option.*startingOffsets"),
    ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest or JSON"),
    ({"startingOffsets": '{"orders":{"a":1}}'}, "startingOffsets has .*partition"),
    ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets has offset -3 for orders-0"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a time in milliseconds"),
    ({"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp must be JSON"),
    ({"startingOffsetsByTimestampStrategy": "x"}, "Strategy must be error or latest"),
    ({"subscribePattern": "a.*"}, "exactly one of .*subscribe and subscribePattern were given"),
    ({"minPartitions": "0"}, "minPartitions must be a whole number above 0"),
    ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger must be a whole number"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time such as"),
    ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false"),
    ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers must be given"),
    ({"kafka.bootstrap.servers": "host:x"}, "kafka.bootstrap.servers has 'host:x'"),
    ({"kafka.isolation.level": "x"}, "kafka.isolation.level must be one of read_uncommitted"),
    ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset cannot be set.*starting"),
    ({"kafka.isolation.levle": "x"}, "kafka.isolation.levle is not known.*isolation.level"),
    ({"kafka.request.timeout.ms": "-1"}, "kafka.request.timeout.ms must be a whole number"),
    ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol must be one of PLAINTEXT"),
    (
        {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"},
        "kafka.sasl.mechanism must be one of PLAIN",
    ),
    (
        {"kafka.ssl.truststore.location": "store.jks"},
        "kafka.ssl.truststore.type must be PEM",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), _WRONG)
def test_errors_name_the_option(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        stream_options(_BASE | wrong)


def test_errors_of_batches() -> None:
    with pytest.raises(OptionError, match="startingOffsets is latest"):
        batch_options(_BASE | {"startingOffsets": "latest"})
    with pytest.raises(OptionError, match=r"startingOffsets has -1 \(latest\)"):
        batch_options(_BASE | {"startingOffsets": '{"orders":{"0":-1}}'})
    with pytest.raises(OptionError, match="endingOffsets is earliest"):
        batch_options(_BASE | {"endingOffsets": "earliest"})


def test_errors_of_streams() -> None:
    with pytest.raises(OptionError, match="endingOffsets is for batches"):
        stream_options(_BASE | {"endingOffsets": "latest"})
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(9\) must not exceed"):
        stream_options(_BASE | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"})


def test_assignment() -> None:
    options = {"kafka.bootstrap.servers": "one", "assign": '{"a":[0,2],"b":[1]}'}
    assert batch_options(options).subscription.partitions == (
        TopicPartition("a", 0),
        TopicPartition("a", 2),
        TopicPartition("b", 1),
    )
    with pytest.raises(OptionError, match=r'assign must be like \{"topic": \[0, 1\]\}'):
        batch_options(options | {"assign": '{"a":"all"}'})


def test_columns() -> None:
    assert column_names({})[-1] == "timestampType"
    assert column_names({"includeHeaders": "true"})[-1] == "headers"
    assert column_names({"columns": "value, offset"}) == ("value", "offset")
    with pytest.raises(OptionError, match="columns must be some of key, value"):
        column_names({"columns": "value,size"})
