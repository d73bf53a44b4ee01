"""What type checkers infer for the clients, their records and serializers."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = """
from millstream import (
    Admin, AsyncAdmin, AsyncConsumer, Consumer, JsonSerializer, MsgspecSerializer, Producer, Record
)

class Order: ...

def encode(order: Order) -> bytes: return b""
def decode(data: bytes) -> Order: return Order()

reveal_type(Producer())
reveal_type(Producer(value_serializer=JsonSerializer()))
reveal_type(Producer(value_serializer=MsgspecSerializer(Order)))
reveal_type(Producer(key_serializer=str.encode, value_serializer=encode))
reveal_type(Consumer(topics=["t"]).poll()[0].value)
reveal_type(Consumer(topics=["t"], value_deserializer=JsonSerializer()))
reveal_type(Consumer(topics=["t"], value_deserializer=decode).poll()[0])
reveal_type(AsyncConsumer(topics=["t"], key_deserializer=bytes.decode))
def handle(record: Record[str, Order]) -> None:
    reveal_type(record.value)
producer: Producer[str, Order] = Producer(key_serializer=str.encode, value_serializer=encode)
producer.send("t", Order(), key="k")
producer.send("t", None, key="k")
producer.send("t", "text")  # wrong
producer.send("t", "k", Order())  # wrong
Consumer(topics=["t"], group="g")  # wrong
Admin().topics()  # wrong
AsyncAdmin().topics()  # wrong
with producer.transaction() as txn:
    txn.send("t", 5)  # wrong
"""
PLAIN = "bytes | str | None"
REVEALED = [
    f"Producer[{PLAIN}, {PLAIN}]",
    f"Producer[{PLAIN}, Any]",
    f"Producer[{PLAIN}, Order]",
    "Producer[str, Order]",
    "bytes | None",
    "Consumer[bytes | None, Any]",
    "Record[bytes | None, Order]",
    "AsyncConsumer[str, bytes | None]",
    "Order",
]


def test_inferred_types(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    settings = ["--strict", "--config-file=", f"--cache-dir={REPOSITORY / '.mypy_cache'}"]
    output, complaint, _ = api.run([*settings, str(sample)])
    assert complaint == ""
    lines = [line for line in output.splitlines() if "sample.py" in line]
    revealed = re.findall(r'Revealed type is "(.*)"', output)
    assert [re.sub(r"(\w+\.)+(?=\w)", "", each) for each in revealed] == REVEALED
    wrong = [number for number, line in enumerate(SAMPLE.splitlines(), 1) if "# wrong" in line]
    errors = {int(match[1]) for line in lines if (match := re.search(r":(\d+): error", line))}
    assert errors == set(wrong), output
