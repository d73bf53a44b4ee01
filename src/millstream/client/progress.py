"""How far a consumer has got in its partitions: what it may commit, and where it would go back to.
Pure.

A batch is looked at once, when it is done with: the last offset of each partition counts. That is a
few calls into C for the whole batch, rather than a few per record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Message

from millstream.client.record import Partition


class Progress:
    """`processed` are next offsets; `bases` where each partition was at the last commit."""

    def __init__(self) -> None:
        self._processed: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._bases: dict[Partition, int] = {}

    def add(self, messages: Sequence[Message]) -> None:
        """These were processed."""
        self._processed.update(ends_of(messages))

    def hand_out(self, messages: Sequence[Message]) -> None:
        """These are about to be processed; until the next commit they may have to come again."""
        for partition, message in _last(reversed(messages)).items():
            self._bases.setdefault(partition, _offset(message))

    def uncommitted(self, in_hand: Sequence[Message] = ()) -> dict[Partition, int]:
        """What there is to commit, with what is in hand counted as processed."""
        found = self._processed | ends_of(in_hand)
        return {
            partition: offset
            for partition, offset in found.items()
            if self._committed.get(partition) != offset
        }

    def committed(self, offsets: Mapping[Partition, int]) -> None:
        self._committed.update(offsets)
        for partition, offset in offsets.items():
            if self._processed.get(partition) == offset:
                del self._processed[partition]
        self._bases.clear()

    def forget(self, partitions: Iterable[Partition]) -> None:
        """They were taken away, or are read from elsewhere."""
        for partition in partitions:
            for known in (self._processed, self._committed, self._bases):
                known.pop(partition, None)

    def rewind(self) -> dict[Partition, int]:
        """Forget what was processed since the last commit; where to read on."""
        bases, self._bases = self._bases, {}
        self._processed.clear()
        return bases


def ends_of(messages: Sequence[Message]) -> dict[Partition, int]:
    """The next offset after these, by partition."""
    return {partition: _offset(message) + 1 for partition, message in _last(messages).items()}


def _last(messages: Iterable[Message]) -> dict[Partition, Message]:
    listed = list(messages)
    names = zip(map(Message.topic, listed), map(Message.partition, listed), strict=True)
    return {
        Partition(topic or "", partition or 0): message
        for (topic, partition), message in dict(zip(names, listed, strict=True)).items()
    }


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
