"""The offsets that a consumer may commit, and those it would return to. Pure.

A batch is examined once, when it is processed: the last offset of each partition counts. If all
records have the same topic, only their partitions are read, in one pass in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Message

from millstream.client.error import UsageError
from millstream.client.record import Partition, Record


class CommitProgress:
    """The processed and committed offsets of a consumer. All are next offsets.

        processed   after the records that the application has processed
        committed   the last commit of this consumer
        bases       exactly once: the first record that was handed out and is not committed
                    at most once: the first record of the last commit

    `topic` is the topic of all records, if there is only one.
    """

    def __init__(self, topic: str | None = None) -> None:
        self.topic = topic
        self._processed: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._bases: dict[Partition, int] = {}

    def add(self, messages: Sequence[Message]) -> None:
        """Count these records as processed."""
        self._processed.update(ends_of(messages, self.topic))

    def hand_out(self, messages: Sequence[Message]) -> None:
        """Remember the first of these records as the base of its partition."""
        for partition, message in _last(messages[::-1], self.topic).items():
            self._bases.setdefault(partition, _offset(message))

    def uncommitted(self, in_hand: Sequence[Message] = ()) -> dict[Partition, int]:
        """Return the offsets to commit, with `in_hand` counted as processed."""
        return self._new(self._processed | ends_of(in_hand, self.topic))

    def handed_out(self, in_hand: Sequence[Message]) -> dict[Partition, int]:
        """As `uncommitted`, also for partitions whose committed records were not handed out yet."""
        return self._new(self._bases | self._processed | ends_of(in_hand, self.topic))

    def _new(self, offsets: dict[Partition, int]) -> dict[Partition, int]:
        return {
            partition: offset
            for partition, offset in offsets.items()
            if self._committed.get(partition) != offset
        }

    def committed(self, offsets: Mapping[Partition, int], in_hand: Sequence[Message] = ()) -> None:
        """Note that these offsets were committed while `in_hand` was handed out."""
        handed_out = self._processed | ends_of(in_hand, self.topic)
        self._committed.update(offsets)
        for partition, offset in offsets.items():
            if self._processed.get(partition) == offset:
                del self._processed[partition]
            if handed_out.get(partition, offset) > offset:
                # Handed-out records after the commit come again from there.
                self._bases[partition] = offset
            else:
                self._bases.pop(partition, None)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that were revoked or continue at another offset."""
        for partition in partitions:
            for known in (self._processed, self._committed, self._bases):
                known.pop(partition, None)

    def rewind(self) -> dict[Partition, int]:
        """Forget the records handed out since the last commit. Return where to continue."""
        bases, self._bases = self._bases, {}
        self._processed.clear()
        return bases


def stated(records: Record | Iterable[Record] | Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the offsets to commit for these records, or these offsets."""
    if isinstance(records, Mapping):
        return {Partition(*partition): offset for partition, offset in records.items()}
    given: Any = records
    listed: list[Any] = [given] if isinstance(given, Record | str) else list(given)
    for each in listed:
        if not isinstance(each, Record):
            raise UsageError(
                f"commit() takes records or a mapping, not {each!r}: to commit offsets, pass the "
                "next one of each partition, {Partition('orders', 0): 8}."
            )
    return ends_of([record._message for record in listed])  # noqa: SLF001


def ends_of(messages: Sequence[Message], topic: str | None = None) -> dict[Partition, int]:
    """Return the next offset after these records, by partition. `topic` is their only topic."""
    return {
        partition: _offset(message) + 1 for partition, message in _last(messages, topic).items()
    }


def _last(messages: Sequence[Message], topic: str | None) -> dict[Partition, Message]:
    numbers = map(Message.partition, messages)
    if topic is not None:
        last = dict(zip(numbers, messages, strict=True))
        return {Partition(topic, number or 0): message for number, message in last.items()}
    names = zip(map(Message.topic, messages), numbers, strict=True)
    return {
        Partition(name or "", number or 0): message
        for (name, number), message in dict(zip(names, messages, strict=True)).items()
    }


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
