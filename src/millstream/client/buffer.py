"""Records between librdkafka and the application. Pure.

pending     fetched, not given out yet
held        the same, of partitions that are paused
in hand     the batch that is being given out; `reached` of it were
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Message

from millstream.client.record import Partition


class Buffer:
    def __init__(self) -> None:
        self.pending: list[Message] = []
        self.in_hand: list[Message] = []
        self.reached = 0
        self._is_one_by_one = False
        self._held: dict[Partition, list[Message]] = {}

    def take(self, count_max: int) -> list[Message]:
        """Of what is pending."""
        taken = self.pending[:count_max]
        del self.pending[:count_max]
        return taken

    def hand_out(self, messages: list[Message]) -> None:
        self.in_hand = messages
        self._is_one_by_one = False
        self.reached = len(messages)

    def step(self) -> None:
        """What is in hand is given out one by one from now on."""
        self._is_one_by_one = True
        self.reached = 0

    def given(self) -> list[Message]:
        """What the application was given of the batch in hand."""
        return self.in_hand[: self.reached]

    def fail(self) -> None:
        """The application failed at the last that it was given: a record, or a batch."""
        self.reached = max(0, self.reached - 1) if self._is_one_by_one else 0

    def settle(self) -> list[Message]:
        """Nothing is in hand any more; what was given of it. The rest is pending again."""
        given = self.given()
        self.pending[:0] = self.in_hand[self.reached :]
        self.in_hand = []
        self.reached = 0
        return given

    def hold(self, partitions: Iterable[Partition]) -> None:
        chosen = set(partitions)
        kept = []
        for message in self.pending:
            name = partition_of(message)
            if name in chosen:
                self._held.setdefault(name, []).append(message)
            else:
                kept.append(message)
        self.pending = kept

    def release(self, partitions: Iterable[Partition]) -> None:
        """What was held is older than all that is pending of its partition."""
        self.pending[:0] = [
            message for partition in partitions for message in self._held.pop(partition, [])
        ]

    def drop(self, partitions: Iterable[Partition]) -> None:
        gone = set(partitions)
        self.pending = [each for each in self.pending if partition_of(each) not in gone]
        # In place: somebody may be walking through it.
        self.in_hand[self.reached :] = [
            each for each in self.in_hand[self.reached :] if partition_of(each) not in gone
        ]
        for partition in gone:
            self._held.pop(partition, None)

    def clear(self) -> None:
        self.pending = []
        self.in_hand = []
        self.reached = 0
        self._held.clear()


def partition_of(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)
