"""The options and the event lines that all Python members share.

A member is started with one JSON argument, its options, and writes the lines that
`group_clients.history` describes. It shuts down on SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

HOLD_POLL_SECONDS = 0.01
POLL_SECONDS = 0.1


class Orders:
    """The options of a member. It commits "after" or "before" processing. While the file `hold`
    exists, it waits between the two."""

    def __init__(self) -> None:
        given: dict[str, Any] = json.loads(sys.argv[1])
        self.bootstrap: str = given["bootstrap"]
        self.group: str = given["group"]
        self.topic: str = given["topic"]
        self.protocol: str = given["protocol"]
        self.assignor: str | None = given["assignor"]
        self.instance_id: str | None = given["instance_id"]
        self.session_ms: int = given["session_ms"]
        self.heartbeat_ms: int = given["heartbeat_ms"]
        self.records_max: int = given["records_max"]
        self.commit: str = given["commit"]
        self._hold: str = given["hold"]
        self.is_stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: object) -> None:
        self.is_stopping = True

    @property
    def is_held(self) -> bool:
        return os.path.exists(self._hold)


class EventReporter:
    """Writes the lines, and tracks the owned partitions, so that none is revoked twice."""

    def __init__(self) -> None:
        self.owned: set[int] = set()

    def assigned(self, partitions: Iterable[int]) -> None:
        self._report("assigned", partitions=self._note(partitions, owned=True))

    def revoked(self, partitions: Iterable[int]) -> None:
        self._report("revoked", partitions=self._note(partitions, owned=False))

    def lost(self, partitions: Iterable[int]) -> None:
        self._report("lost", partitions=self._note(partitions, owned=False))

    def processed(self, partition: int, offset: int, value: bytes | None) -> None:
        text = (value or b"").decode()
        self._report("processed", partition=partition, offset=offset, value=text)

    def holding(self) -> None:
        self._report("holding")

    def committing(self, offsets: dict[int, int]) -> None:
        self._report("committing", offsets=offsets)

    def committed(self) -> None:
        self._report("committed")

    def refused(self, reason: object) -> None:
        self._report("refused", reason=str(reason))

    def _note(self, partitions: Iterable[int], *, owned: bool) -> list[int]:
        """Return the partitions whose ownership changes."""
        news = sorted(number for number in set(partitions) if (number in self.owned) != owned)
        self.owned.symmetric_difference_update(news)
        return news

    def _report(self, event: str, **fields: object) -> None:
        if fields.get("partitions") == []:
            return
        line = {"event": event, "at": time.monotonic_ns(), **fields}
        # One write per line, so that a kill can damage only the last line.
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
