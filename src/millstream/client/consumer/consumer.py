"""The consumer for threads: a member of a group, or a reader of whole topics."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, Unpack

from millstream.client.consumer.consumer_core import ConsumerCore, SeekOffset
from millstream.client.consumer.subscription import Subscription, subscription_of
from millstream.client.error import UsageError
from millstream.client.old_name import rejects_old_names
from millstream.client.record import Partition, Record, Records
from millstream.client.serializer import KeyRead, ValueRead
from millstream.client.setting import ConsumerOptions, ConsumerSettings

RECORDS_MAX: Final = 500


class Consumer(Generic[KeyRead, ValueRead]):
    """Reads records of topics, and shares their partitions with the other members of its group.

    >>> with Producer() as producer:
    ...     for apples in range(3):
    ...         _ = producer.send("baskets", f"{apples} apples", key="alice")
    >>> with Consumer(group_id="billing", topics=["baskets"]) as consumer:
    ...     for record in consumer:
    ...         print(record.key, record.value)
    ...         if record.value == b"2 apples":
    ...             break
    b'alice' b'0 apples'
    b'alice' b'1 apples'
    b'alice' b'2 apples'

    `delivery` says what happens to records that were being processed when the process died:

    - `at_least_once`: they come again. Records count as processed at the next poll, or with
      `commit()`. They are committed every `commit_interval` and when closing. A `with` block that
      ends with an exception does not commit the record that it failed at.
    - `at_most_once`: they are lost. Records are committed before they are handed out.
    - `exactly_once`: they come again, and what was sent for them with `producer=` was never
      visible. `commit()` commits both in a transaction of that producer. The next transaction
      begins before the next record: a loop over the consumer may commit each record. After
      `poll()` send for the whole batch before `commit()`, or use `commit(record)`.

    `topics` are names. `pattern` is a regular expression instead, which matches the whole name of a
    topic; `subscribe` changes both later. A slow handler does not remove the consumer from its
    group. Without a `group_id` the consumer reads all partitions of its topics from
    `auto_offset_reset` on, and commits nothing. The other keywords are those of `ConsumerSettings`.
    Times are in seconds. Methods may be called from any thread, one at a time.

    Without deserializers, keys and values are bytes. `Consumer[K, V]` yields `Record[K, V]`: type
    checkers infer both from the deserializers. None stays None, for example the value of a
    tombstone: annotate `Consumer[str, Order | None]` where there are some.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        topics: Sequence[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        group_id: str | None = None,
        **options: Unpack[ConsumerOptions[KeyRead, ValueRead]],
    ) -> None:
        self._core = ConsumerCore(
            bootstrap_servers,
            group_id,
            subscription_of(topics, pattern),
            ConsumerSettings.of(options),
        )
        self._core.owner = self
        try:
            self._core.start()
        except BaseException:
            self._core.close(is_failing=True)
            raise

    @rejects_old_names
    def poll(
        self, max_records: int = RECORDS_MAX, timeout: float = 1.0
    ) -> Records[KeyRead, ValueRead]:
        """Return up to `max_records` records as soon as there are some; none after `timeout`.

        The records of the previous poll now count as processed.
        """
        return self._core.poll(count_of(max_records), timeout)

    def __iter__(self) -> Iterator[Record[KeyRead, ValueRead]]:
        """Yield records one by one until the consumer is closed."""
        return self._core.iterate(RECORDS_MAX)

    def subscribe(
        self,
        topics: Sequence[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
    ) -> None:
        """Read these topics, or all topics that match `pattern`, instead of those before.

        `pattern` is a regular expression that matches the whole name. In a group, topics that are
        created later count as well. Partitions that are in both subscriptions stay assigned.
        """
        self._core.subscribe(required(topics, pattern))

    def unsubscribe(self) -> None:
        """Commit processed records and give up all partitions. The group assigns them to others."""
        self._core.unsubscribe()

    def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """Commit the handed-out records up to the current one.

        With `records`, commit up to these; with a mapping, commit these next offsets by partition.
        Raises CommitFailed if another member has the partitions meanwhile.
        """
        self._core.commit(records)

    def seek(
        self,
        topic: str,
        partition: int | None = None,
        *,
        offset: SeekOffset | None = None,
        time: dt.datetime | int | None = None,
    ) -> None:
        """Continue at an offset, at "earliest" or "latest", or at the first record at or after
        `time`.

        `time` is a datetime or milliseconds since 1970. Applies to one partition or to all assigned
        ones of the topic. In `on_assign` it sets where a partition starts.
        """
        self._core.seek(topic, partition, offset, milliseconds_of(time))

    def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record of a partition that the consumer hands out."""
        return self._core.position(topic, partition)

    def pause(self, topic: str, partition: int | None = None) -> None:
        """Hand out no records of the topic or partition until `resume`."""
        self._core.pause(topic, partition)

    def resume(self, topic: str, partition: int | None = None) -> None:
        """Hand out records of the topic or partition again."""
        self._core.resume(topic, partition)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are assigned to this consumer."""
        return frozenset(self._core.assignment.partitions)

    @property
    def ended(self) -> frozenset[Partition]:
        """The assigned partitions that were read to their end at least once.

        Their records up to there were handed out. librdkafka reports ends only with
        `config={"enable.partition.eof": True}`.
        """
        return self._core.ended

    def committed(self) -> dict[Partition, int]:
        """Return the group's committed offsets of this consumer's partitions."""
        return self._core.committed()

    def offsets(self) -> dict[Partition, int]:
        """Return the next offsets after the handed-out records that are not committed."""
        return self._core.offsets()

    def group_metadata(self) -> Any:
        """Return what a transaction needs to commit offsets for this member; see `send_offsets`."""
        return self._core.settled_group_metadata()

    def close(self) -> None:
        """Commit processed records and leave the group. Further calls do nothing."""
        self._core.close(is_failing=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._core.close(is_failing=error is not None)


def load_ahead(consumer: Consumer[Any, Any]) -> None:
    """Let deserializers of schema registries look up schemas inside `poll`, not at the first access
    to a value.
    """
    consumer._core.load_ahead()  # noqa: SLF001


def consumer_over(core: ConsumerCore) -> Consumer[Any, Any]:
    """Return a consumer over the core of an `AsyncConsumer`, for its callbacks."""
    consumer: Consumer[Any, Any] = Consumer.__new__(Consumer)
    consumer._core = core  # noqa: SLF001
    return consumer


def required(topics: Sequence[str] | None, pattern: str | re.Pattern[str] | None) -> Subscription:
    """Return the subscription for these arguments, or raise if both are missing."""
    subscription = subscription_of(topics, pattern)
    if subscription is None:
        raise UsageError("subscribe() needs topics=[...] or pattern='...'.")
    return subscription


def count_of(max_records: int) -> int:
    """Return the number of records to poll, or raise."""
    if not isinstance(max_records, int) or not 1 <= max_records <= 1_000_000:
        raise UsageError(
            f"max_records={max_records!r}: pass a whole number from 1 to 1,000,000. How long to "
            "wait is timeout=..., in seconds."
        )
    return max_records


def milliseconds_of(time: dt.datetime | int | None) -> int | None:
    """Return a time as milliseconds since 1970."""
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: pass datetime(..., tzinfo=timezone.utc).")
        return int(time.timestamp() * 1000)
    return time
