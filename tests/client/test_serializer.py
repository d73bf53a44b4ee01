"""Serializers, and the imports of their formats."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from millstream.client import AvroSerializer, MsgspecSerializer, UsageError


def test_msgspec_validates() -> None:
    class Order(msgspec.Struct):
        apples: int

    for orders in (MsgspecSerializer(Order), MsgspecSerializer(Order, format="msgpack")):
        assert orders.deserialize(orders.serialize(Order(2))) == Order(2)
    with pytest.raises(msgspec.ValidationError):
        MsgspecSerializer(Order).deserialize(b'{"apples":"two"}')
    with pytest.raises(UsageError, match="format='xml' is unknown"):
        MsgspecSerializer(format="xml")  # type: ignore[arg-type]


def test_avro_reads_data_of_an_older_schema() -> None:
    def schema(*fields: dict[str, object]) -> dict[str, object]:
        return {"type": "record", "name": "Order", "fields": list(fields)}

    old = schema({"name": "apples", "type": "int"})
    new = schema({"name": "apples", "type": "int"}, {"name": "pears", "type": "int", "default": 0})
    data = AvroSerializer(old).serialize({"apples": 2})
    assert AvroSerializer(new, writer_schema=old).deserialize(data) == {"apples": 2, "pears": 0}
    with pytest.raises(ValueError, match="1 bytes are left"):
        AvroSerializer(old).deserialize(data + b"x")


def test_formats_are_imported_when_needed_and_missing_ones_are_named() -> None:
    program = (
        "import sys\n"
        "import millstream\n"
        "assert 'confluent_kafka' not in sys.modules\n"
        "from millstream import AvroSerializer, ProtobufSerializer\n"
        "assert 'fastavro' not in sys.modules and 'google.protobuf' not in sys.modules\n"
        "sys.modules['fastavro'] = sys.modules['google.protobuf.message'] = None\n"
        "for make in (lambda: AvroSerializer('int'), lambda: ProtobufSerializer(int)):\n"
        "    try:\n"
        "        make()\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    assert "pip install 'millstream[avro]'" in done.stdout
    assert "pip install 'millstream[protobuf]'" in done.stdout
