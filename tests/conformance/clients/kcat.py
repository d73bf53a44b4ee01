"""kcat: one process for each record produced, and one for each read.

A record's value is a file, so it can hold any bytes. Keys and headers are arguments, so they cannot
hold a NUL byte. kcat skips empty files and treats an empty key argument as no key; such records are
sent as a line with a separator. It has no option for a record's timestamp, and does not print the
offset of a produced record.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from typing import ClassVar

from clients.contract import (
    CODECS,
    MESSAGE_BYTES_MAX,
    OFFSETS,
    TIMESTAMP,
    WAIT_SECONDS_MAX,
    Record,
    Settings,
)

# Offset, timestamp, key length, value length (-1 is null) and headers on one line; then the bytes.
SEPARATOR = b"|"
FORMAT = "%o %T %K %S %h\n%k%s\n"


class KcatClient:
    name: ClassVar[str] = "kcat"
    codecs: ClassVar[Sequence[str]] = CODECS
    lacks: ClassVar[frozenset[str]] = frozenset({TIMESTAMP, OFFSETS})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _run(self, *arguments: str, line: bytes = b"") -> bytes:
        command = ["kcat", "-b", self._bootstrap, "-m", "10", *arguments]
        done = subprocess.run(
            command, input=line, capture_output=True, timeout=WAIT_SECONDS_MAX, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], settings: Settings
    ) -> list[int]:
        for record in records:
            self._produce_one(topic, partition, record, settings)
        return [-1] * len(records)

    def _produce_one(self, topic: str, partition: int, record: Record, settings: Settings) -> None:
        options = ["-P", "-t", topic, "-p", str(partition), "-z", settings.codec]
        options += ["-X", f"acks={settings.acks}", "-X", f"message.max.bytes={MESSAGE_BYTES_MAX}"]
        if settings.idempotent is not None:
            options += ["-X", f"enable.idempotence={str(settings.idempotent).lower()}"]
        for name, value in record.headers:
            options += ["-H", name if value is None else f"{name}={value.decode()}"]
        if record.value and record.key != b"":
            if record.key is not None:
                options += ["-k", record.key.decode()]
            with tempfile.NamedTemporaryFile() as file:
                file.write(record.value)
                file.flush()
                self._run(*options, file.name)
        else:
            # With -Z an empty key or value is null.
            nulls = ["-Z"] if record.value is None else []
            line = (record.key or b"") + SEPARATOR + (record.value or b"") + b"\n"
            self._run(*options, *nulls, "-K", SEPARATOR.decode(), line=line)

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        return self._consume(topic, partition, str(offset), count)

    def consume_from_time(
        self, topic: str, partition: int, timestamp: int, count: int
    ) -> list[Record]:
        return self._consume(topic, partition, f"s@{timestamp}", count)

    def _consume(self, topic: str, partition: int, start: str, count: int) -> list[Record]:
        options = ["-C", "-q", "-t", topic, "-p", str(partition), "-o", start, "-c", str(count)]
        return self._parse(self._run(*options, "-f", FORMAT))

    @classmethod
    def _parse(cls, output: bytes) -> list[Record]:
        records = []
        position = 0
        while position < len(output):
            end = output.index(b"\n", position)
            offset, timestamp, key_length, value_length, headers = output[position:end].split(
                b" ", 4
            )
            key, position = cls._read_field(output, end + 1, int(key_length))
            value, position = cls._read_field(output, position, int(value_length))
            position += 1
            records.append(
                Record(key, value, cls._parse_headers(headers), int(timestamp), int(offset))
            )
        return records

    @staticmethod
    def _read_field(output: bytes, position: int, length: int) -> tuple[bytes | None, int]:
        if length < 0:
            return None, position
        return output[position : position + length], position + length

    @staticmethod
    def _parse_headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
        headers: list[tuple[str, bytes | None]] = []
        for header in text.split(b",") if text else ():
            name, _, value = header.partition(b"=")
            headers.append((name.decode(), None if value == b"NULL" else value))
        return tuple(headers)

    def close(self) -> None:
        """Do nothing: no process stays open."""
