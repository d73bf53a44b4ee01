"""The interface through which tests use every client.

A driver in this folder wraps one unmodified client behind `Client` (records) or `Admin` (topics).
`lacks` names what the client cannot do; tests skip exactly those cases. Consumers read assigned
partitions: no consumer group is needed.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

WAIT_SECONDS_MAX = 30.0
MESSAGE_BYTES_MAX = 8 << 20
# A consumer that gets another partition first waits for the fetch in progress.
FETCH_WAIT_MS = 50
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Names used in `lacks`.
TIMESTAMP = "explicit timestamps"
NULL_BOTH = "a record with neither key nor value"
NULL_HEADER = "null header values"
OFFSETS = "the offsets of produced records"


class Record(NamedTuple):
    """One record, before it is produced (offset -1) or after it was consumed."""

    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    offset: int = -1

    def content(self) -> tuple[object, ...]:
        return self.key, self.value, self.headers


class Settings(NamedTuple):
    """How to produce."""

    codec: str = "none"
    acks: str = "all"
    #: None: the client's default.
    idempotent: bool | None = None


class Client(Protocol):
    """Produces and consumes records. Every call waits for its result, at most WAIT_SECONDS_MAX."""

    name: ClassVar[str]
    codecs: ClassVar[Sequence[str]]
    lacks: ClassVar[frozenset[str]]

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], settings: Settings
    ) -> list[int]:
        """Produce in order; return the offsets (-1 with acks=0, or if the client hides them)."""

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        """Seek to `offset` and read `count` records."""

    def consume_from_time(
        self, topic: str, partition: int, timestamp: int, count: int
    ) -> list[Record]:
        """Look up the offset of `timestamp`, seek to it and read `count` records."""

    def close(self) -> None: ...


class Admin(Protocol):
    """Manages topics. `lacks` holds names of methods that the client has no call for."""

    name: ClassVar[str]
    lacks: ClassVar[frozenset[str]]

    def create_topic(
        self, topic: str, partitions: int, configs: dict[str, str], replicas: int = -1
    ) -> None:
        """Create a topic; -1 replicas means the brokers' default."""

    def list_topics(self) -> set[str]: ...
    def describe_topic(self, topic: str) -> list[dict[str, Any]]: ...
    def delete_topic(self, topic: str) -> None: ...
    def create_partitions(self, topic: str, total: int) -> None: ...
    def describe_config(self, topic: str) -> dict[str, str]: ...
    def alter_config(self, topic: str, configs: dict[str, str]) -> None: ...
    def delete_records(self, topic: str, partition: int, before: int) -> int: ...
    def describe_cluster(self) -> dict[str, Any]: ...
    def describe_log_dirs(self, topic: str) -> dict[int, list[int]]:
        """Return the bytes of each replica, by partition."""

    def list_offset(self, topic: str, partition: int, at: str | int) -> int: ...
    def describe_producers(self, topic: str, partition: int) -> list[dict[str, int]]: ...
    def close(self) -> None: ...


class DriverError(AssertionError):
    """The client in another process reported an error."""


class DriverProcess:
    """A client of another language in a process: one line of JSON per request and response."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )

    def call(self, **request: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        # A driver that hangs is killed, so that the read below ends.
        watchdog = threading.Timer(2 * WAIT_SECONDS_MAX, self._process.kill)
        watchdog.start()
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            tail = self._log.read_text(errors="replace")[-3000:]
            raise DriverError(f"the driver ended at {request.get('op')}:\n{tail}")
        response = json.loads(line)
        if "error" in response:
            raise DriverError(response["error"])
        return response["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
