"""The parts that need no broker: progress, partitions, serializers, imports."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from confluent_kafka import Message

from millstream.client import AvroSerializer, MsgspecSerializer, Partition, UsageError
from millstream.client.consumer.progress import Progress, ends_of, only_of
from millstream.client.producer.partitioner import by_key, murmur2


def messages(*places: tuple[int, int]) -> list[Message]:
    return [Message(topic="t", partition=number, offset=offset) for number, offset in places]


def test_the_last_offset_of_each_partition_counts() -> None:
    batch = messages((0, 1), (0, 2), (1, 7), (0, 5))
    assert ends_of(batch) == {Partition("t", 0): 6, Partition("t", 1): 8}
    assert ends_of(batch, "t") == ends_of(batch)
    others = [*batch, Message(topic="u", partition=0, offset=3)]
    assert ends_of(others) == {**ends_of(batch), Partition("u", 0): 4}
    assert [only_of(["t"]), only_of(["t", "u"]), only_of(["^t"])] == ["t", None, None]


@pytest.mark.parametrize("topic", [None, "t"])
def test_progress_is_committed_once_and_rewound_to_the_last_commit(topic: str | None) -> None:
    progress = Progress(topic)
    batch = messages((0, 0), (0, 1))
    progress.hand_out(batch)
    assert progress.uncommitted() == {}
    assert progress.uncommitted(batch[:1]) == {("t", 0): 1}
    progress.add(batch)
    progress.committed(progress.uncommitted())
    assert progress.uncommitted() == {}
    progress.hand_out(messages((0, 2), (1, 4)))
    progress.hand_out(messages((0, 3)))
    progress.add(messages((0, 2), (1, 4), (0, 3)))
    progress.forget([Partition("t", 1)])
    assert progress.uncommitted() == {("t", 0): 4}
    assert progress.rewind() == {("t", 0): 2}
    assert progress.uncommitted() == {}


def test_a_partial_commit_keeps_the_base_of_the_rest() -> None:
    progress = Progress("t")
    batch = messages((0, 2), (0, 3), (1, 4), (1, 5))
    progress.hand_out(batch)
    progress.committed({Partition("t", 0): 3}, batch)
    assert progress.uncommitted(batch) == {("t", 0): 4, ("t", 1): 6}
    assert progress.rewind() == {("t", 0): 3, ("t", 1): 4}


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, digest: int) -> None:
    assert murmur2(key) == digest & 0xFFFFFFFF
    assert by_key(key, 7) == (digest & 0x7FFFFFFF) % 7


def test_msgspec_validates() -> None:
    class Order(msgspec.Struct):
        apples: int

    for orders in (MsgspecSerializer(Order), MsgspecSerializer(Order, format="msgpack")):
        assert orders.decode(orders.encode(Order(2))) == Order(2)
    with pytest.raises(msgspec.ValidationError):
        MsgspecSerializer(Order).decode(b'{"apples":"two"}')
    with pytest.raises(UsageError, match="format='xml' is unknown"):
        MsgspecSerializer(format="xml")  # type: ignore[arg-type]


def test_avro_reads_what_an_older_schema_wrote() -> None:
    def schema(*fields: dict[str, object]) -> dict[str, object]:
        return {"type": "record", "name": "Order", "fields": list(fields)}

    old = schema({"name": "apples", "type": "int"})
    new = schema({"name": "apples", "type": "int"}, {"name": "pears", "type": "int", "default": 0})
    data = AvroSerializer(old).encode({"apples": 2})
    assert AvroSerializer(new, writer_schema=old).decode(data) == {"apples": 2, "pears": 0}
    with pytest.raises(ValueError, match="1 bytes are left"):
        AvroSerializer(old).decode(data + b"x")


def test_formats_are_imported_when_needed_and_missing_ones_named() -> None:
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
