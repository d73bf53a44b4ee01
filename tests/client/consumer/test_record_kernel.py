"""Records over messages: as plain Python, and as this installation has them, perhaps compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

import millstream.client
from millstream.client import SerializationError
from millstream.client.consumer import record_kernel as installed

SOURCE = Path(millstream.client.__file__).with_name("consumer") / "record_kernel.py"


def _plain() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_client_kernel", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.is_compiled()
    return module


@pytest.fixture(params=["plain", "installed"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    return installed if request.param == "installed" else _plain()


def message(offset: int = 7, value: bytes | None = b"5") -> Message:
    return Message(
        topic="t",
        partition=3,
        offset=offset,
        key=b"k",
        value=value,
        headers=[("a", b"1"), ("b", None), ("a", b"2")],
        timestamp=(TIMESTAMP_CREATE_TIME, 99),
    )


def test_a_record_shows_its_message(kernel: ModuleType) -> None:
    record = kernel.Record(message())
    assert (record.topic, record.partition, record.offset) == ("t", 3, 7)
    assert (record.key, record.value, record.timestamp) == (b"k", b"5", 99)
    assert record.headers == [("a", b"1"), ("b", None), ("a", b"2")]
    assert (record.header("a"), record.header("b"), record.header("c")) == (b"2", None, None)
    assert repr(record) == "<Record t-3@7>"
    with pytest.raises(AttributeError):
        record.value = b"other"
    with pytest.raises(AttributeError):
        record.note = "of somebody"


def test_values_are_decoded_once_on_first_access(kernel: ModuleType) -> None:
    calls: list[bytes] = []

    def decode(data: bytes) -> int:
        calls.append(data)
        return int(data)

    make = kernel.record_type(None, decode)
    record, other = make(message()), kernel.record_type(bytes.decode, None)(message())
    assert calls == []
    assert (record.value, record.value, record.raw_value) == (5, 5, b"5")
    assert calls == [b"5"]
    assert (record.key, record.raw_key, other.key, other.value) == (b"k", b"k", "k", b"5")
    assert make(message(value=None)).value is None
    broken = make(message(value=b"five"))
    for _ in range(2):
        with pytest.raises(SerializationError, match="value of t-3 at offset 7 cannot be decoded"):
            _ = broken.value
    assert broken.raw_value == b"five"
    assert kernel.record_type(None, None) is kernel.Record


def test_a_batch_is_a_sequence(kernel: ModuleType) -> None:
    messages = [message(offset) for offset in range(5)]
    records = kernel.Records(messages, kernel.Record)
    assert [record.offset for record in records] == [0, 1, 2, 3, 4]
    assert (len(records), records[-1].offset, bool(records[:0])) == (5, 4, False)
    assert [record.offset for record in records[1:3]] == [1, 2]
    assert records.is_of(messages)
    assert not records.is_of(list(messages))
    assert repr(records) == "<5 records>"
