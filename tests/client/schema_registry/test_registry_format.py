"""The serdes beside confluent-kafka's own serializers, on two registries."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import SerializationContext

from harness import order_schema as order
from harness.fake_registry import FakeRegistry
from millstream.client.error import (
    SchemaNotFound,
    SchemaRejected,
    SerializationError,
    UsageError,
)
from millstream.client.schema_registry.registry import SchemaRegistry
from millstream.client.schema_registry.registry_format import (
    RegistryAvroSerde,
    RegistryJsonSerde,
    RegistryProtobufSerde,
)
from millstream.client.serde_context import Header, RecordContext

TOPIC_NAMES = {"subject.name.strategy": topic_subject_name_strategy}


class Format(NamedTuple):
    """One format: Millstream's serde, confluent-kafka's pair, and a value."""

    serde: Callable[..., Any]
    serializer: Callable[[SchemaRegistryClient, dict[str, Any]], Any]
    deserializer: Callable[[SchemaRegistryClient], Any]
    value: Any


AVRO_TEXT, JSON_TEXT = json.dumps(order.AVRO), json.dumps(order.JSON)

FORMATS = {
    "avro": Format(
        lambda registry, **options: RegistryAvroSerde(registry, order.AVRO, **options),
        lambda client, conf: AvroSerializer(client, AVRO_TEXT, conf=conf),
        lambda client: AvroDeserializer(client, conf=TOPIC_NAMES),
        order.VALUE,
    ),
    "json": Format(
        lambda registry, **options: RegistryJsonSerde(registry, order.JSON, **options),
        lambda client, conf: JSONSerializer(JSON_TEXT, client, conf=conf),
        lambda client: JSONDeserializer(None, schema_registry_client=client, conf=TOPIC_NAMES),
        order.VALUE,
    ),
    "protobuf": Format(
        lambda registry, **options: RegistryProtobufSerde(registry, order.Order, **options),
        lambda client, conf: ProtobufSerializer(order.Order, client, conf),
        lambda client: ProtobufDeserializer(order.Order, TOPIC_NAMES, client),
        order.Order(**order.VALUE),
    ),
}


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def new_topic() -> str:
    return f"orders-{uuid.uuid4().hex}"


@pytest.mark.parametrize("part", ["value", "key"])
def test_bytes_are_those_of_confluent_kafka(
    registry_url: str, client: SchemaRegistryClient, kind: Format, part: Any
) -> None:
    topic = new_topic()
    ours = kind.serde(registry_url)
    written = ours.serialize(kind.value, RecordContext(topic, part, []))
    context = SerializationContext(topic, part, [])
    assert written == kind.serializer(client, TOPIC_NAMES)(kind.value, context)
    assert written[0] == 0
    assert f"{topic}-{part}" in client.get_subjects()
    assert kind.deserializer(client)(written, context) == kind.value
    # A serde that has not written reads it as well.
    again = kind.serde(registry_url)
    assert again.deserialize(written, RecordContext(topic, part, [])) == kind.value


def test_ids_in_headers(fake_registry: FakeRegistry, kind: Format) -> None:
    with closing(SchemaRegistryClient({"url": fake_registry.url})) as client:
        check_ids_in_headers(client, fake_registry.url, kind)


def check_ids_in_headers(client: SchemaRegistryClient, url: str, kind: Format) -> None:
    topic = new_topic()
    conf = {**TOPIC_NAMES, "schema.id.serializer": header_schema_id_serializer}
    theirs = SerializationContext(topic, "value", [])
    expected = kind.serializer(client, conf)(kind.value, theirs)
    # The header of an earlier value must not stay: readers use the first one.
    headers: list[Header] = [("__value_schema_id", b"\1" + bytes(16)), ("color", b"red")]
    serde = kind.serde(url, schema_id_in="headers")
    written = serde.serialize(kind.value, RecordContext(topic, "value", headers))
    assert written == expected
    assert headers == [("color", b"red"), *theirs.headers]
    assert headers[1][0] == "__value_schema_id"
    mine = RecordContext(topic, "value", headers)
    assert kind.serde(url).deserialize(written, mine) == kind.value
    assert kind.deserializer(client)(written, SerializationContext(topic, "value", headers)) == (
        kind.value
    )


def test_a_short_payload_with_its_id_in_headers(fake_registry: FakeRegistry) -> None:
    serde = RegistryAvroSerde(fake_registry.url, {"type": "int"}, schema_id_in="headers")
    context = RecordContext("numbers", "value", [])
    assert serde.serialize(7, context) == b"\x0e"
    assert serde.deserialize(b"\x0e", context) == 7


def test_message_indexes_name_nested_messages(registry_url: str) -> None:
    serde = RegistryProtobufSerde(registry_url, order.Line)
    context = RecordContext(new_topic(), "value", [])
    written = serde.serialize(order.Line(item="apple"), context)
    # Two indexes: the second message of the file, and the first message in it.
    assert written[5:8] == bytes([4, 2, 0])
    assert serde.deserialize(written, context).item == "apple"


def test_messages_of_another_type_are_an_error(registry_url: str) -> None:
    context = RecordContext(new_topic(), "value", [])
    written = RegistryProtobufSerde(registry_url, order.Line).serialize(order.Line(), context)
    with pytest.raises(SerializationError, match=r"a message Order\.Line, not a message Order"):
        RegistryProtobufSerde(registry_url, order.Order).deserialize(written, context)


def test_subjects_are_named_by_a_strategy(registry_url: str, client: SchemaRegistryClient) -> None:
    topic = new_topic()
    strategies: list[tuple[Any, str]] = [
        ("record", "shop.Order"),
        ("topic_record", f"{topic}-shop.Order"),
        (lambda context, record: f"mine-{context.topic}-{record}", f"mine-{topic}-shop.Order"),
    ]
    for strategy, subject in strategies:
        serde = RegistryAvroSerde(registry_url, order.AVRO, subject=strategy)
        context = RecordContext(topic, "value", [])
        assert serde.deserialize(serde.serialize(order.VALUE, context), context) == order.VALUE
        assert subject in client.get_subjects()


def test_readers_convert_to_their_own_schema(registry_url: str) -> None:
    context = RecordContext(new_topic(), "value", [])
    written = RegistryAvroSerde(registry_url, order.AVRO).serialize(order.VALUE, context)
    newer = RegistryAvroSerde(registry_url, order.AVRO_WITH_NOTE)
    assert newer.deserialize(written, context) == {**order.VALUE, "note": "none"}


def test_the_latest_version_of_a_subject(fake_registry: FakeRegistry) -> None:
    context = RecordContext("orders", "value", [])
    RegistryAvroSerde(fake_registry.url, order.AVRO_WITH_NOTE).serialize(
        {**order.VALUE, "note": "n"}, context
    )
    latest = RegistryAvroSerde(fake_registry.url, use_latest_version=True)
    assert latest.deserialize(latest.serialize(order.VALUE, context), context)["note"] == "none"


def test_objects_are_converted(fake_registry: FakeRegistry) -> None:
    class Bought(NamedTuple):
        customer: str
        apples: int

    context = RecordContext("orders", "value", [])
    for serde in (
        RegistryAvroSerde(
            fake_registry.url,
            order.AVRO,
            to_dict=Bought._asdict,
            from_dict=lambda each: Bought(**each),
        ),
        RegistryJsonSerde(
            fake_registry.url,
            order.JSON,
            to_dict=Bought._asdict,
            from_dict=lambda each: Bought(**each),
            subject="record",
        ),
    ):
        bought = Bought("alice", 2)
        assert serde.deserialize(serde.serialize(bought, context), context) == bought


def test_an_incompatible_schema_is_rejected(fake_registry: FakeRegistry) -> None:
    context = RecordContext("orders", "value", [])
    RegistryAvroSerde(fake_registry.url, order.AVRO).serialize(order.VALUE, context)
    changed = RegistryAvroSerde(fake_registry.url, order.AVRO_WITHOUT_DEFAULT)
    with pytest.raises(SchemaRejected, match=r"give new fields a default") as caught:
        changed.serialize({**order.VALUE, "price": 1.5}, context)
    assert caught.value.status == 409
    assert isinstance(caught.value, SerializationError)


def test_schemas_that_are_not_registered(registry_url: str) -> None:
    context = RecordContext(new_topic(), "value", [])
    serde = RegistryAvroSerde(registry_url, order.AVRO, auto_register=False)
    with pytest.raises(SchemaNotFound, match="Register the schema"):
        serde.serialize(order.VALUE, context)
    with pytest.raises(SchemaNotFound, match="Register the schema"):
        serde.deserialize(b"\0\0\1\0\0" + b"some bytes", context)


def test_bytes_without_a_frame(fake_registry: FakeRegistry) -> None:
    context = RecordContext("orders", "value", [])
    serde = RegistryJsonSerde(fake_registry.url)
    for data in (b'{"customer": "alice"}', b"", b"\0\0\0"):
        with pytest.raises(SerializationError, match="no schema id"):
            serde.deserialize(data, context)
    assert not fake_registry.requests


def test_values_that_do_not_fit(registry_url: str) -> None:
    context = RecordContext(new_topic(), "value", [])
    with pytest.raises(SerializationError, match="'apples' is a required property"):
        RegistryJsonSerde(registry_url, order.JSON).serialize({"customer": "alice"}, context)


def test_ids_in_headers_need_guids(apicurio_url: str) -> None:
    serde = RegistryAvroSerde(apicurio_url, order.AVRO, schema_id_in="headers")
    with pytest.raises(SerializationError, match="set schema_id_in='value'"):
        serde.serialize(order.VALUE, RecordContext(new_topic(), "value", []))


def test_wrong_usage(fake_registry: FakeRegistry) -> None:
    registry = SchemaRegistry(fake_registry.url)
    with pytest.raises(UsageError, match="no schema to write with"):
        RegistryAvroSerde(registry).serialize({}, RecordContext("orders", "value", []))
    with pytest.raises(UsageError, match="schema_id_in='body'"):
        RegistryAvroSerde(registry, schema_id_in="body")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="subject='nothing'"):
        RegistryAvroSerde(registry, subject="nothing")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="option auto is unknown"):
        RegistryAvroSerde(registry, auto=True)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="not a class that the Protobuf compiler generated"):
        RegistryProtobufSerde(registry, dict)
    with pytest.raises(UsageError, match="needs the topic"):
        RegistryAvroSerde(registry, order.AVRO).serialize(order.VALUE)
