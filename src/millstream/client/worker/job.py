"""A message as its handler sees it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from millstream.client.error import UsageError
from millstream.client.record import Header, Record
from millstream.client.schedule import Headers, due_ms
from millstream.client.serializer import encoded
from millstream.client.worker.header import Output, foreign, scheduled
from millstream.client.worker.in_flight import Entry
from millstream.client.worker.policy import Serializers, Verdict

Part: TypeAlias = Literal["key", "value"]


class Job:
    """One attempt at a message.

    Returning means `ack()`, raising means `nack()` with that exception. Said explicitly, the last
    word counts, and takes effect when the handler ends.
    """

    __slots__ = ("_deadline", "_serializers", "entry", "is_over", "outputs", "verdict")

    def __init__(
        self, entry: Entry, deadline: float, serializers: Serializers = (None, None)
    ) -> None:
        self.entry = entry
        self._deadline = deadline
        #: Of keys and values that the handler sends.
        self._serializers = serializers
        self.outputs: list[Output] = []
        self.verdict: Verdict | None = None
        #: The attempt has ended, for its handler or without it.
        self.is_over = False

    # The message

    @property
    def record(self) -> Record:
        """As it was read: from the topic itself, a retry topic or the scheduled ones."""
        return self.entry.record

    @property
    def topic(self) -> str:
        """The topic that the message was sent to first."""
        return self.entry.origin.topic

    @property
    def partition(self) -> int:
        """Where it was in that topic."""
        return self.entry.origin.partition

    @property
    def offset(self) -> int:
        return self.entry.origin.offset

    @property
    def key(self) -> Any:
        return self.entry.record.key

    @property
    def value(self) -> Any:
        return self.entry.record.value

    @property
    def headers(self) -> list[Header]:
        """Those of the application."""
        return foreign(self.entry.record.headers)

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.entry.attempts

    @property
    def deadline(self) -> float:
        """When the attempt counts as failed, in the seconds of `time.monotonic()`."""
        return self._deadline

    # What becomes of it

    def ack(self) -> None:
        """It is done."""
        self.verdict = Verdict("ack")

    def nack(self, delay: float | None = None, reason: str | None = None) -> None:
        """It is to be tried again, after `delay` seconds, or as the backoff says."""
        if delay is not None and delay < 0:
            raise UsageError(f"delay={delay!r}: give seconds from now on.")
        self.verdict = Verdict("nack", delay, reason or "nack() by the handler")

    def reject(self, reason: str | None = None) -> None:
        """It becomes a dead letter at once."""
        self.verdict = Verdict("reject", None, reason or "reject() by the handler")

    def extend(self, seconds: float) -> None:
        """Have this long from now on before the attempt counts as failed."""
        if seconds <= 0:
            raise UsageError(f"extend({seconds!r}): give seconds.")
        self._deadline = time.monotonic() + seconds

    def send(
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        *,
        headers: Headers | None = None,
        deliver_at: dt.datetime | int | None = None,
        delay: dt.timedelta | float | None = None,
    ) -> None:
        """Send a record once the message is done; nothing is sent if the attempt fails.

        It is sent before the message counts as processed; with `transactional=True` both are one.
        Key and value are bytes, strings or None, or what the serializers in `producer=` take.
        """
        key = self._encoded("key", key, topic)
        value = self._encoded("value", value, topic)
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        listed = [(name, text.encode() if isinstance(text, str) else text) for name, text in pairs]
        if deliver_at is not None or delay is not None:
            due = due_ms(deliver_at, delay)
            self.outputs.append(scheduled(topic, key, value, listed, due))
        else:
            self.outputs.append(Output(topic, key, value, listed))

    def _encoded(self, part: Part, given: Any, topic: str) -> Any:
        serializer = self._serializers[part == "value"]
        if serializer is not None:
            return encoded(serializer, given, part, topic)
        if not isinstance(given, str | bytes | None):
            raise UsageError(
                f"job.send takes bytes, strings or None as the {part}, not {given!r}. Other values "
                f"need Worker(producer={{'{part}_serializer': ...}})."
            )
        return given
