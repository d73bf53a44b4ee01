"""Clients that commit offsets one after the other and record what they sent.

Each client has a group of its own. It raises the offset of a partition by one with every commit
request, whether or not the request got a response. The metadata of a commit is the offset as text.
So the broker's offset must lie between the last acknowledged and the last requested one, and its
metadata must match.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from harness.raw.raw_client import Closed, RawClient
from millstream.wire.messages.offset_commit import OffsetCommitRequest

#: The last version that has topic names instead of topic ids.
_COMMIT_BY_NAME: Final = 9
_RETRY_SECONDS: Final = 0.02
_POLL_SECONDS: Final = 0.05


class Committer(ABC):
    """Commits offsets of `topic`, a few partitions at a time, until it is stopped."""

    def __init__(self, group: str, bootstrap: str, topic: str, partitions: int) -> None:
        self.group = group
        self.topic = topic
        self._bootstrap = bootstrap
        self._partitions = range(partitions)
        self.asked: dict[int, int] = dict.fromkeys(self._partitions, 0)
        self.acknowledged: dict[int, int] = {}
        self.commit_count = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=self.group)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until the last request has a response or has failed."""
        assert self._thread is not None
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def close(self) -> None:
        """Release the connection after `stop`."""

    def _run(self) -> None:
        while not self._stop.is_set():
            partitions = self._assigned()
            if not partitions:
                continue
            offsets = {number: self.asked[number] + 1 for number in partitions}
            self.asked |= offsets
            if self._commit(offsets):
                self.acknowledged |= offsets
                self.commit_count += 1
            else:
                self._stop.wait(_RETRY_SECONDS)

    def _assigned(self) -> Iterable[int]:
        return self._partitions

    @abstractmethod
    def _commit(self, offsets: dict[int, int]) -> bool:
        """Commit, and return whether the broker acknowledged all partitions."""


class RawCommitter(Committer):
    """Commits over a plain connection, without being a member of the group."""

    def __init__(self, group: str, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(group, bootstrap, topic, partitions)
        self._client: RawClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _commit(self, offsets: dict[int, int]) -> bool:
        rows = [
            OffsetCommitRequest.Topic.Partition(
                partition_index=number, committed_offset=offset, committed_metadata=str(offset)
            )
            for number, offset in offsets.items()
        ]
        topics = [OffsetCommitRequest.Topic(name=self.topic, partitions=rows)]
        try:
            if self._client is None:
                host, _, port = self._bootstrap.partition(":")
                self._client = RawClient(host, int(port))
            request = OffsetCommitRequest(group_id=self.group, topics=topics)
            response = self._client.call(request, _COMMIT_BY_NAME)
        except (Closed, ConnectionRefusedError):
            self.close()
            return False
        return all(row.error_code == 0 for each in response.topics for row in each.partitions)


class ConfluentCommitter(Committer):
    """Commits with librdkafka; with a group protocol in `settings`, as a member of its group."""

    def __init__(
        self,
        group: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(group, bootstrap, topic, partitions)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **(settings or {}),
            }
        )
        self._is_member = settings is not None
        if self._is_member:
            self._consumer.subscribe([topic])

    def close(self) -> None:
        self._consumer.close()

    def _assigned(self) -> Iterable[int]:
        if not self._is_member:
            return self._partitions
        self._consumer.poll(_POLL_SECONDS)
        return [each.partition for each in self._consumer.assignment()]

    def _commit(self, offsets: dict[int, int]) -> bool:
        places = [
            TopicPartition(self.topic, number, offset, str(offset))
            for number, offset in offsets.items()
        ]
        try:
            responses = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return False
        return all(each.error is None for each in responses or ())
