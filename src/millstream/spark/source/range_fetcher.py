"""Fetches one range of a partition. Sends the next request while the caller uses a response.

The fetcher handles leaders that move, offsets that retention deleted, and topics that were deleted
and created again. It reads only batch headers, to find the next offset; `records` decodes batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_REPLICA
from millstream.model.topic import NO_TOPIC_ID
from millstream.protocol.broker_connection import BrokerConnection
from millstream.protocol.cluster_client import RETRIABLE, ClusterClient, RetryBackoff
from millstream.records.batch import iterate_batches
from millstream.records.crc import Buffer
from millstream.spark.error import ConnectionLost, ProtocolError
from millstream.spark.source.data_loss import DataLossPolicy
from millstream.spark.source.offset_range import OffsetRange
from millstream.spark.source.source_options import FetchSettings
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.list_offsets import EARLIEST, LATEST

#: The last version that names topics; later versions use topic ids.
_BY_NAME_VERSION: Final = 12
#: The assumed size of a record before the first response.
_RECORD_BYTES_GUESS: Final = 1024
_FETCH_BYTES_MIN: Final = 256 * 1024

_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class RecordSet(NamedTuple):
    """The batches of one response; the last one may be incomplete. Skip records below `start`.

    `aborted` lists aborted transactions as (producer id, first offset). `records` is valid until
    the next set is requested."""

    start: int
    records: Buffer
    aborted: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The range to fetch, and how to fetch it."""

    wanted: OffsetRange
    topic_id: bytes
    settings: FetchSettings
    loss: DataLossPolicy


class RangeFetcher:
    """Iterates over the record sets that cover the range of `plan`, in order.

    The sets may start before the range and end after it. No other code may use the cluster
    meanwhile."""

    def __init__(self, cluster: ClusterClient, plan: FetchPlan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._position = plan.wanted.start
        #: The connection with a request in flight.
        self._in_flight: BrokerConnection | None = None
        self._replica_id = NO_REPLICA
        self._record_bytes: float = _RECORD_BYTES_GUESS
        self._retry = self._new_retry()

    def __iter__(self) -> Iterator[RecordSet]:
        end = self._plan.wanted.end
        while self._position < end:
            row = self._next_row()
            if row is None:
                continue
            records: Buffer = row.records or b""  # type: ignore[assignment]
            following = self._next_offset(records)
            if following == self._position:
                self._handle_empty(row, len(records))
                continue
            start, self._position = self._position, following
            self._record_bytes = len(records) / (following - start)
            self._retry = self._new_retry()
            if following < end:
                self._try_send()
            yield RecordSet(start, records, _aborted(row))

    def _next_row(self) -> FetchResponse.Topic.Partition | None:
        """Return the next response, or None if the request must be repeated."""
        try:
            if self._in_flight is None:
                self._send()
            connection, self._in_flight = self._in_flight, None
            assert connection is not None
            response = connection.receive(FetchResponse, is_kept=False)
            _raise(response.error_code)
            if not response.responses:
                _raise(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            row = response.responses[0].partitions[0]
            _raise(row.error_code)
        except ConnectionLost as lost:
            self._retry_later(lost)
            return None
        except BrokerError as error:
            self._handle(error)
            return None
        if row.preferred_read_replica != NO_REPLICA:
            self._replica_id = row.preferred_read_replica
        return row

    def _try_send(self) -> None:
        """Send the next request early. An error here shows when the response is needed."""
        try:
            self._send()
        except (ConnectionLost, BrokerError):
            self._in_flight = None

    def _send(self) -> None:
        wanted = self._plan.wanted
        if self._replica_id == NO_REPLICA:
            connection = self._cluster.leader_connection(wanted.topic, wanted.partition)
        else:
            connection = self._cluster.broker_connection(self._replica_id)
        by_id = self._plan.topic_id != NO_TOPIC_ID
        connection.send(self._request(), None if by_id else _BY_NAME_VERSION)
        self._in_flight = connection

    def _request(self) -> FetchRequest:
        wanted, settings = self._plan.wanted, self._plan.settings
        size = self._bytes_max()
        partition = FetchRequest.Topic.Partition(
            partition=wanted.partition, fetch_offset=self._position, partition_max_bytes=size
        )
        topic = FetchRequest.Topic(
            topic=wanted.topic, topic_id=self._plan.topic_id, partitions=[partition]
        )
        return FetchRequest(
            max_wait_ms=settings.wait_ms_max,
            min_bytes=settings.bytes_min,
            max_bytes=size,
            isolation_level=int(settings.is_committed),
            topics=[topic],
            rack_id=self._cluster.settings.rack,
        )

    def _bytes_max(self) -> int:
        """Return about the size of the rest of the range, to fetch little beyond it."""
        left = (self._plan.wanted.end - self._position) * self._record_bytes * 1.05
        return min(self._plan.settings.bytes_max, max(_FETCH_BYTES_MIN, int(left)))

    def _next_offset(self, records: Buffer) -> int:
        """Return the offset after the last complete batch."""
        following = self._position
        for _, header in iterate_batches(records, verify_crc=False):
            following = max(following, header.next_offset)
        return following

    def _handle_empty(self, row: FetchResponse.Topic.Partition, size: int) -> None:
        """Handle a response without new batches: end the range, or retry later."""
        wanted = self._plan.wanted
        if size:
            raise ProtocolError(
                f"{wanted.key} has a batch at offset {self._position} of more than {size} bytes,"
                " which the broker did not send completely"
            )
        if row.preferred_read_replica != NO_REPLICA:
            return
        reach = row.last_stable_offset if self._plan.settings.is_committed else row.high_watermark
        if reach >= wanted.end:
            # Compaction removed the rest, or it never held records.
            self._position = wanted.end
            return
        self._retry.pause(
            ProtocolError(
                f"{wanted.key} can be read only up to offset {reach}, but the range ends at"
                f" {wanted.end}"
            )
        )

    def _handle(self, error: BrokerError) -> None:
        wanted = self._plan.wanted
        self._replica_id = NO_REPLICA
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._handle_out_of_range(error)
        elif error.code in _GONE:
            self._check_topic(error)
        elif error.code in RETRIABLE:
            self._retry_later(error)
        else:
            raise ProtocolError(
                f"fetching {wanted.key} at offset {self._position} failed: {error}"
            ) from error

    def _handle_out_of_range(self, error: BrokerError) -> None:
        wanted, position = self._plan.wanted, self._position
        first = self._cluster.list_offsets({wanted.key: EARLIEST})[wanted.key]
        last = self._cluster.list_offsets({wanted.key: LATEST})[wanted.key]
        if first <= position <= last:
            self._retry_later(error)
            return
        self._position = min(first, wanted.end) if first > position else wanted.end
        self._plan.loss.report(
            f"Offsets {position} to {self._position - 1} of {wanted.key} are gone: its log now has"
            f" offsets {first} to {last - 1}."
        )

    def _check_topic(self, error: BrokerError) -> None:
        wanted, position = self._plan.wanted, self._position
        self._cluster.forget_leaders()
        try:
            found = self._cluster.topic(wanted.topic)
        except BrokerError as problem:
            if problem.code not in _GONE:
                raise
            what = "was deleted"
        else:
            is_same = self._plan.topic_id in (NO_TOPIC_ID, found.topic_id)
            if is_same and wanted.partition in found.leaders:
                self._retry_later(error)
                return
            what = "was deleted and created again"
        self._position = wanted.end
        self._plan.loss.report(
            f"Topic {wanted.topic} {what}, so offsets {position} to {wanted.end - 1} of"
            f" {wanted.key} are gone."
        )

    def _retry_later(self, problem: Exception) -> None:
        self._cluster.forget_leaders()
        self._replica_id = NO_REPLICA
        self._retry.pause(problem)

    def _new_retry(self) -> RetryBackoff:
        wanted = self._plan.wanted
        return self._cluster.backoff(f"read {wanted.key} at offset {self._position}")


def _aborted(row: FetchResponse.Topic.Partition) -> list[tuple[int, int]]:
    return [(one.producer_id, one.first_offset) for one in row.aborted_transactions or []]


def _raise(code: int) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(code))
