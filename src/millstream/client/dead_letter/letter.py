"""A dead letter, and the selection of letters. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.client.record import Header, Record
from millstream.client.worker import header as names
from millstream.model.error import UsageError

SUFFIX: Final = names.dead_letter_topic("")


class LetterId(NamedTuple):
    """The position of a letter in its dead-letter topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> LetterId:
        """Return the id of this text, PARTITION:OFFSET."""
        partition, colon, offset = text.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise UsageError(f"{text!r} is not a letter id: use PARTITION:OFFSET, for example 0:17")
        return cls(int(partition), int(offset))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a worker gave up on, with its error."""

    id: LetterId
    key: bytes | None
    value: bytes | None
    #: The application's headers.
    headers: list[Header]
    #: When it became a dead letter, in ms since 1970.
    timestamp: int
    origin: names.Origin
    error_type: str
    error_message: str
    error_stack: str

    @classmethod
    def of(cls, record: Record) -> DeadLetter:
        """Read a letter from a record. Letters of other programs lack some of the headers."""
        known = names.worker_headers(record.headers)
        died = names.number_in(known, names.DEAD_TIMESTAMP)
        return cls(
            LetterId(record.partition, record.offset),
            record.raw_key,
            record.raw_value,
            names.application_headers(record.headers),
            (record.timestamp or 0) if died is None else died,
            names.Origin.of(record),
            known.get(names.ERROR_TYPE, ""),
            known.get(names.ERROR_MESSAGE, ""),
            known.get(names.ERROR_STACK, ""),
        )

    def target(self, dead_letter_topic: str) -> str:
        """Return the topic that the message came from."""
        if self.origin.topic != dead_letter_topic:
            return self.origin.topic
        return dead_letter_topic.removesuffix(SUFFIX)

    def again(self, topic: str, dead_letter_topic: str) -> names.OutputRecord:
        """Return the original message, with a header for the letter it was."""
        trace = f"{dead_letter_topic}-{self.id.partition}@{self.id.offset}".encode()
        headers = [*self.headers, (names.REPLAYED_FROM, trace)]
        return names.OutputRecord(topic, self.key, self.value, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Matches letters that meet all criteria that are set. Without criteria it matches all."""

    error: str | None = None
    key: bytes | None = None
    topic: str | None = None
    group_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    ids: frozenset[LetterId] | None = None

    def has(self, letter: DeadLetter) -> bool:
        """Whether the letter matches."""
        return (
            (self.error is None or self._is_error(letter, self.error.casefold()))
            and (self.key is None or letter.key == self.key)
            and (self.topic is None or letter.origin.topic == self.topic)
            and (self.group_id is None or letter.origin.group == self.group_id)
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
            and (self.until_ms is None or letter.timestamp < self.until_ms)
            and (self.ids is None or letter.id in self.ids)
        )

    @staticmethod
    def _is_error(letter: DeadLetter, text: str) -> bool:
        return text in letter.error_type.casefold() or text in letter.error_message.casefold()


def topic_of(name: str) -> str:
    """Return the dead-letter topic of a topic; a dead-letter topic is returned as it is."""
    return name if name.endswith(SUFFIX) else names.dead_letter_topic(name)
