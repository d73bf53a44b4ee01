"""A message as its handler sees it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Never

from millstream.client.error import UsageError
from millstream.client.record import Header, Record
from millstream.client.schedule import Headers, due_ms
from millstream.client.serde_context import Part, is_on_event_loop
from millstream.client.worker.message.header import (
    OutputRecord,
    application_headers,
    scheduled_record,
)
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.policy.policy import AttemptResult, Encoders
from millstream.client.wrong_argument import documented, reject_arguments

if TYPE_CHECKING:
    # Python 3.13 has defaults of type variables; type checkers know them in older versions too.
    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=Any)
else:
    from typing import TypeVar

    Value = TypeVar("Value")

_AS_READ: Final[Any] = object()


class Job(Generic[Value]):
    """One attempt at a message.

    Returning means `ack()`, raising means `nack()` with that exception. A handler that calls one of
    them decides itself. The last call counts, and takes effect when the handler ends.
    """

    __slots__ = (
        "_deadline",
        "_encoders",
        "_value",
        "is_over",
        "item",
        "outputs",
        "result",
        "unserialized",
    )

    def __init__(self, item: WorkItem, deadline: float, encoders: Encoders = (None, None)) -> None:
        self.item = item
        self._deadline = deadline
        #: For the keys and values that the handler sends.
        self._encoders = encoders
        #: The typed value, or `_AS_READ`.
        self._value: Any = _AS_READ
        self.outputs: list[OutputRecord] = []
        #: Outputs, with their topics, whose serializers have to load and must not do so on an event
        #: loop. `serialize_outputs` serializes them after the handler.
        self.unserialized: list[tuple[int, str]] = []
        self.result: AttemptResult | None = None
        #: The attempt has ended, by its handler or by its deadline.
        self.is_over = False

    # The message

    @property
    def record(self) -> Record:
        """The record as it was read: from the topic itself, a retry topic or a scheduled one."""
        return self.item.record

    @property
    def topic(self) -> str:
        """The topic that the message was first sent to."""
        return self.item.origin.topic

    @property
    def partition(self) -> int:
        """The partition of the message in that topic."""
        return self.item.origin.partition

    @property
    def offset(self) -> int:
        """The offset of the message in that topic."""
        return self.item.origin.offset

    @property
    def key(self) -> Any:
        return self.item.record.key

    @property
    def value(self) -> Value:
        """The value: of the type that the handler's annotation names, or as the consumer decodes
        it.
        """
        value = self._value
        return self.item.record.value if value is _AS_READ else value  # type: ignore[no-any-return]

    def set_value(self, value: Any) -> None:
        """Replace the value for this attempt: what middleware does before the handler runs."""
        self._value = value

    @property
    def headers(self) -> list[Header]:
        """The application's headers."""
        return application_headers(self.item.record.headers)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on."""
        return self.item.attempts

    @property
    def deadline(self) -> float:
        """When the attempt counts as failed, in seconds of `time.monotonic()`."""
        return self._deadline

    # The outcome

    def ack(self) -> None:
        """Mark the message as done."""
        self.result = AttemptResult("ack")

    def nack(self, delay: float | None = None, reason: str | None = None) -> None:
        """Retry the message after `delay` seconds, or as the backoff says."""
        if delay is not None and delay < 0:
            raise UsageError(f"delay={delay!r}: pass seconds, not below 0.")
        self.result = AttemptResult("nack", delay, reason or "nack() by the handler")

    def reject(self, reason: str | None = None) -> None:
        """Make the message a dead letter at once."""
        self.result = AttemptResult("reject", None, reason or "reject() by the handler")

    def extend(self, seconds: float) -> None:
        """Set the deadline of this attempt to `seconds` from now."""
        if seconds <= 0:
            raise UsageError(f"extend({seconds!r}): pass seconds above 0.")
        self._deadline = time.monotonic() + seconds

    @documented
    def send(
        self,
        topic: str,
        value: Any,
        *extra: Never,
        key: Any = None,
        headers: Headers | None = None,
        delay: dt.timedelta | float | None = None,
        deliver_at: dt.datetime | int | None = None,
        **unknown: Never,
    ) -> None:
        """Send a record once the message is done. Nothing is sent if the attempt fails.

        The record is sent before the message counts as processed. With `transactional=True` both
        happen in one transaction. Key and value are bytes, strings or None, or what the serializers
        of the worker encode.
        """
        if extra or unknown:
            reject_arguments(Job.send, extra, unknown)
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        listed = [(name, text.encode() if isinstance(text, str) else text) for name, text in pairs]
        if self._must_load(topic) and is_on_event_loop():
            self.unserialized.append((len(self.outputs), topic))
        else:
            key = self._encoded("key", key, topic, listed)
            value = self._encoded("value", value, topic, listed)
        if deliver_at is not None or delay is not None:
            due = due_ms(deliver_at, delay)
            self.outputs.append(scheduled_record(topic, key, value, listed, due))
        else:
            self.outputs.append(OutputRecord(topic, key, value, listed))

    def serialize_outputs(self) -> None:
        """Serialize the outputs that `send` could not serialize on the event loop. May block."""
        for index, topic in self.unserialized:
            output = self.outputs[index]
            key = self._encoded("key", output.key, topic, output.headers)
            value = self._encoded("value", output.value, topic, output.headers)
            self.outputs[index] = output._replace(key=key, value=value)
        self.unserialized.clear()

    def _must_load(self, topic: str) -> bool:
        return any(each is not None and each.must_load(topic) for each in self._encoders)

    def _encoded(self, part: Part, given: Any, topic: str, headers: list[Header]) -> Any:
        encoder = self._encoders[part == "value"]
        if encoder is not None:
            return encoder.encode(given, topic, headers)
        if not isinstance(given, str | bytes | None):
            raise UsageError(
                f"job.send takes bytes, strings or None as the {part}, not {given!r}. Other values "
                f"need Worker({part}_serializer=...), for example JsonSerializer()."
            )
        return given
