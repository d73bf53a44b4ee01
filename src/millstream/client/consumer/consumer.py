"""The consumer: a member of a group, or a reader of whole topics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, Unpack

from millstream.client.consumer.consumer_core import ConsumerCore, Position
from millstream.client.error import UsageError
from millstream.client.record import Partition, Record, Records
from millstream.client.setting import ConsumerOptions, ConsumerSettings

RECORDS_MAX: Final = 500


class Consumer:
    """Reads records of topics, sharing their partitions with the other members of its group.

    >>> with Producer() as producer:
    ...     for apples in range(3):
    ...         _ = producer.send("baskets", "alice", f"{apples} apples")
    >>> with Consumer(group="billing", topics=["baskets"]) as consumer:
    ...     for record in consumer:
    ...         print(record.key, record.value)
    ...         if record.value == b"2 apples":
    ...             break
    b'alice' b'0 apples'
    b'alice' b'1 apples'
    b'alice' b'2 apples'

    `delivery` says what becomes of records that were being processed when the process died:

    - `at_least_once`: they come again. Records count as processed when the next are asked for, or
      with `commit()`; that is committed every `commit_interval_s` and at the end. A `with` block
      that ends with an exception does not commit the record it failed at.
    - `at_most_once`: they are lost. Committed before they are handed out.
    - `exactly_once`: they come again, and what was sent for them with `producer=` was never
      visible. `commit()` ends a transaction of that producer, which has both. The next one begins
      before the next record: in a loop over the consumer, each record may have a commit. After
      `poll()` send for the whole batch before `commit()`, or use `commit(record)`.

    A handler may take its time: the consumer stays in its group meanwhile. Without a `group` it
    reads all partitions of its topics from `start` on, and commits nothing. The other keywords are
    those of `ConsumerSettings`. Methods may be called from any thread, one at a time.
    """

    def __init__(
        self,
        servers: str | None = None,
        *,
        topics: Sequence[str],
        group: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._core = ConsumerCore(servers, group, topics_of(topics), ConsumerSettings.of(options))
        self._core.owner = self
        try:
            self._core.start()
        except BaseException:
            self._core.close(is_failing=True)
            raise

    @classmethod
    def over(cls, core: ConsumerCore) -> Self:
        """A consumer over the core of an `AsyncConsumer`, for use inside its callbacks."""
        made = cls.__new__(cls)
        made._core = core  # noqa: SLF001
        return made

    def poll(self, max_records: int = RECORDS_MAX, timeout_s: float = 1.0) -> Records:
        """Records as soon as there are some, at most `max_records`; none after `timeout_s`.

        The records of the poll before count as processed now.
        """
        return self._core.take(count_of(max_records), timeout_s)

    def __iter__(self) -> Iterator[Record]:
        """Records one by one, until the consumer is closed."""
        return self._core.walk(RECORDS_MAX)

    def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """Commit what was handed out, up to and with the present record; or up to `records`; or
        the offsets of the next records, by partition.

        Raises CommitFailed when partitions were given to another member meanwhile.
        """
        self._core.commit(records)

    def seek(
        self,
        topic: str,
        partition: int | None = None,
        *,
        offset: Position | None = None,
        time: dt.datetime | int | None = None,
    ) -> None:
        """Read on at an offset, at "earliest" or "latest", or at the first record from `time` on
        (a datetime, or milliseconds since 1970); in one partition or all that are assigned.

        In `on_assign` it says where a partition begins.
        """
        self._core.seek(topic, partition, offset, milliseconds_of(time))

    def pause(self, topic: str, partition: int | None = None) -> None:
        """Hand out nothing more of it until `resume`."""
        self._core.pause(topic, partition)

    def resume(self, topic: str, partition: int | None = None) -> None:
        self._core.resume(topic, partition)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that this consumer has now."""
        return frozenset(self._core.assignment.partitions)

    def committed(self) -> dict[Partition, int]:
        """The group's committed offsets, of the partitions that this consumer has."""
        return self._core.committed()

    def offsets(self) -> dict[Partition, int]:
        """The next offsets after what was handed out and not committed yet."""
        return self._core.offsets()

    def group_metadata(self) -> Any:
        """What a transaction needs to commit offsets for this member; see `send_offsets`."""
        return self._core.settled_group_metadata()

    def close(self) -> None:
        """Commit what was processed and leave the group. Twice is once."""
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


def topics_of(topics: Sequence[str]) -> list[str]:
    if isinstance(topics, str) or not topics:
        raise UsageError(f"topics={topics!r}: give a list of names, for example ['orders'].")
    return list(topics)


def count_of(max_records: int) -> int:
    if not isinstance(max_records, int) or not 1 <= max_records <= 1_000_000:
        raise UsageError(f"max_records={max_records!r}: give a number from 1 to 1,000,000.")
    return max_records


def milliseconds_of(time: dt.datetime | int | None) -> int | None:
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            raise UsageError(f"{time} has no time zone: give datetime(..., tzinfo=timezone.utc).")
        return int(time.timestamp() * 1000)
    return time
