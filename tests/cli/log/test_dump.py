from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.cli.log.dump import dump_file, file_kind
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.crc import crc32c
from millstream.records.record import Record

NAME = f"{100:020d}"
STAMP = 1_700_000_000_000


def batch(base_offset: int, count: int = 3, **options: Any) -> bytes:
    records = [
        Record(base_offset + n, STAMP + base_offset + n, b"k%d" % n, b"v%d" % n, [("h", b"x")])
        for n in range(count)
    ]
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=5, **options))


def rows(path: Path, *, deep: bool = False, verify: bool = True) -> list[dict[str, Any]]:
    return list(dump_file(path, deep=deep, verify=verify))


def damage(path: Path, **options: bool) -> list[str]:
    return [row["message"] for row in rows(path, **options) if row["type"] == "damage"]


def write(folder: Path, suffix: str, data: bytes) -> Path:
    path = folder / f"{NAME}.{suffix}"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{NAME}.log", "log"),
        (f"{NAME}.index", "index"),
        (f"{NAME}.timeindex.deleted", "timeindex"),
        (f"{NAME}.log.swap", "log"),
        (f"{NAME}.snapshot", "snapshot"),
        ("leader-epoch-checkpoint", "checkpoint"),
        ("recovery-point-offset-checkpoint", "checkpoint"),
        ("meta.properties", None),
        ("broker.log", None),
        (NAME, None),
        (f"{NAME}.txt", None),
        (f"{NAME}.checkpoint", None),
    ],
)
def test_file_kinds(name: str, kind: str | None) -> None:
    assert file_kind(Path(name)) == kind


@pytest.mark.parametrize("codec", list(CompressionType))
def test_batches_and_records(tmp_path: Path, codec: CompressionType) -> None:
    path = write(tmp_path, "log", batch(100, codec=codec) + batch(103, 2, codec=codec))
    found = rows(path, deep=True)
    assert [row["type"] for row in found] == [
        *("batch", "record", "record", "record"),
        *("batch", "record", "record"),
        "summary",
    ]
    first = found[0]
    assert (first["position"], first["base_offset"], first["last_offset"]) == (0, 100, 102)
    assert (first["count"], first["codec"], first["leader_epoch"]) == (3, codec.name.lower(), 5)
    assert found[4]["position"] == first["size"]
    assert found[1] == {
        "type": "record",
        "offset": 100,
        "timestamp": STAMP + 100,
        "key": "k0",
        "value": "v0",
        "headers": [{"key": "h", "value": "x"}],
    }
    assert found[-1] == {
        "type": "summary",
        "batches": 2,
        "records": 5,
        "start_offset": 100,
        "end_offset": 105,
    }


def test_bytes_that_are_not_text_are_base64(tmp_path: Path) -> None:
    record = Record(100, STAMP, b"\xff", None, [("h", b"\xfe"), ("n", None)])
    path = write(tmp_path, "log", bytes(build_batch([record], base_offset=100)))
    row = rows(path, deep=True)[1]
    assert (row["key_base64"], row["value"]) == ("/w==", None)
    assert row["headers"] == [{"key": "h", "value_base64": "/g=="}, {"key": "n", "value": None}]


def test_control_records(tmp_path: Path) -> None:
    key, value = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7)
    record = Record(100, STAMP, key, value, [])
    data = build_batch(
        [record],
        base_offset=100,
        producer_id=9,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )
    head, record_row, _ = rows(write(tmp_path, "log", bytes(data)), deep=True)
    assert (head["control"], head["transactional"], head["producer_id"]) == (True, True, 9)
    assert record_row["control"] == "commit"


def test_an_empty_segment(tmp_path: Path) -> None:
    assert [row["type"] for row in rows(write(tmp_path, "log", b""))] == ["summary"]


def test_damage_is_reported_and_later_batches_are_shown(tmp_path: Path) -> None:
    data = bytearray(batch(100) + batch(103))
    data[70] ^= 1
    path = write(tmp_path, "log", bytes(data))
    assert damage(path) == ["CRC of the batch with offset 100 is wrong"]
    assert damage(path, verify=False) == []
    assert rows(path)[-1]["batches"] == 2


def test_a_torn_tail(tmp_path: Path) -> None:
    whole = batch(100)
    path = write(tmp_path, "log", whole + whole[:-1])
    assert damage(path) == [f"{len(whole) - 1} bytes at the end are not a complete batch"]


def test_offsets_must_increase(tmp_path: Path) -> None:
    assert damage(write(tmp_path, "log", batch(103) + batch(100))) == ["offset 100 follows 105"]
    assert damage(write(tmp_path, "log", batch(7))) == ["offset 7 follows 99"]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    suffix=st.sampled_from(["log", "index", "timeindex", "txnindex", "snapshot"]),
    data=st.binary(max_size=300)
    | st.tuples(st.integers(0, 200), st.integers(0, 255)).map(
        lambda change: bytes(
            byte ^ (change[1] if n == change[0] else 0) for n, byte in enumerate(batch(100))
        )
    ),
)
def test_any_bytes_give_a_summary(tmp_path: Path, suffix: str, data: bytes) -> None:
    found = rows(write(tmp_path, suffix, data), deep=True)
    assert found[-1]["type"] == "summary"


def test_offset_index_is_checked_against_its_log(tmp_path: Path) -> None:
    first, second = batch(100), batch(103)
    write(tmp_path, "log", first + second)
    good = struct.pack(">ii", 5, len(first))
    assert rows(write(tmp_path, "index", good + bytes(80))) == [
        {"type": "entry", "offset": 105, "position": len(first)},
        {"type": "summary", "entries": 1},
    ]
    wrong = struct.pack(">ii", 5, len(first) + 1)
    (message,) = damage(write(tmp_path, "index", wrong))
    assert "ends at 105" in message
    assert damage(write(tmp_path, "index", wrong), verify=False) == []
    assert damage(write(tmp_path, "index", good + good)) == ["entry is not after the previous one"]
    assert damage(write(tmp_path, "index", good + b"abc")) == [
        "3 bytes at the end are not a complete entry"
    ]


def test_time_index(tmp_path: Path) -> None:
    data = struct.pack(">qiqi", STAMP, 2, STAMP + 5, 7)
    found = rows(write(tmp_path, "timeindex", data))
    assert [row.get("offset") for row in found] == [102, 107, None]
    assert found[1]["timestamp"] == STAMP + 5
    backwards = struct.pack(">qiqi", STAMP, 2, STAMP - 5, 7)
    assert damage(write(tmp_path, "timeindex", backwards)) == [
        "entry is not later than the previous one"
    ]


def snapshot(*producers: tuple[int, ...]) -> bytes:
    body = struct.pack(">i", len(producers))
    body += b"".join(struct.pack(">qhiqiqiq", *producer) for producer in producers)
    return struct.pack(">hI", 1, crc32c(body)) + body


def test_snapshot(tmp_path: Path) -> None:
    data = snapshot((7, 1, 9, 109, 9, STAMP, -1, -1))
    entry, summary = rows(write(tmp_path, "snapshot", data))
    assert (entry["producer_id"], entry["last_sequence"], entry["last_offset"]) == (7, 9, 109)
    assert summary == {"type": "summary", "entries": 1}
    assert damage(write(tmp_path, "snapshot", data[:-1] + b"\x00")) == ["CRC is wrong"]
    assert len(damage(write(tmp_path, "snapshot", data[:-1]))) == 2
    assert damage(write(tmp_path, "snapshot", b"")) == ["0 bytes are too few for a snapshot"]


def test_checkpoints(tmp_path: Path) -> None:
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_text("0\n2\n0 0\n3 120\n")
    assert rows(epochs) == [
        {"type": "entry", "epoch": 0, "start_offset": 0},
        {"type": "entry", "epoch": 3, "start_offset": 120},
        {"type": "summary", "entries": 2},
    ]
    epochs.write_text("0\n2\n0 0\nx 120\n")
    assert damage(epochs) == [
        "line 4 is not epoch start_offset",
        "the first two lines should be 0 and 1",
    ]
    points = tmp_path / "recovery-point-offset-checkpoint"
    points.write_text("0\n1\norders 2 55\n")
    assert rows(points)[0] == {"type": "entry", "topic": "orders", "partition": 2, "offset": 55}
    points.write_text("")
    assert damage(points) == ["the first two lines should be 0 and 0"]
