"""The checks of a leader for produced records, and the list of invalid ones (KIP-467).

Costs time per record: `log.validation` decides which batches are checked here.

A batch is appended as a whole or not at all. If some records are invalid, `RecordsRejected` lists
them, so that a client can drop them and send the others again. The list and its messages are
bounded, because a small compressed batch may hold millions of invalid records. A client that sends
the records beyond the bound again gets them listed in the next response.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT64_MAX
from millstream.model.topic import TopicPartition
from millstream.records.batch import BatchHeader, CorruptBatch
from millstream.records.crc import Buffer
from millstream.records.kernel import find_rejected
from millstream.records.record import plain_records

INT64_MIN: Final = -INT64_MAX - 1

#: Most invalid records of one batch that are listed: librdkafka's default batch size.
NAMED_MAX: Final = 10_000
#: Most invalid records with a message of their own. Clients use the batch's for the others.
MESSAGES_MAX: Final = 1_000
#: Invalid records that the message of the batch describes.
_DESCRIBED_MAX: Final = 3


class RecordError(NamedTuple):
    """An invalid record: its index in the batch, and the reason."""

    batch_index: int
    message: str | None


class RecordsRejected(BrokerError):  # noqa: N818 - names what happened to the records
    """A batch was rejected because of some of its records."""

    __slots__ = ("record_errors",)

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        #: In the order of the records, at most NAMED_MAX.
        self.record_errors = record_errors


class RecordRules(NamedTuple):
    """The rules for each record of a partition."""

    is_key_required: bool = False
    #: The range of timestamps, both ends included. A record without a timestamp is valid.
    earliest_ms: int = INT64_MIN
    latest_ms: int = INT64_MAX


def validate_records(
    batch: Buffer,
    header: BatchHeader,
    size_max: int,
    rules: RecordRules,
    topic_partition: TopicPartition,
) -> int:
    """Check the records of a produced batch that passed `check_batch`.

    Returns the latest timestamp of the records; -1 if none has one. Raises INVALID_RECORD if the
    records do not decode to `header.count` records with offsets that count up from 0, or decompress
    to more than `size_max` bytes. Raises RecordsRejected if records break `rules`: with
    INVALID_TIMESTAMP if a timestamp is out of range, otherwise with INVALID_RECORD.
    """
    try:
        listed, without_key, untimely, max_timestamp = find_rejected(
            plain_records(batch, header, size_max),
            header.count,
            header.base_timestamp,
            rules.earliest_ms,
            rules.latest_ms,
            rules.is_key_required,
            NAMED_MAX,
        )
    except CorruptBatch as error:
        raise BrokerError(ErrorCode.INVALID_RECORD, error.message) from error
    if not listed:
        return max_timestamp
    rejected = without_key + untimely
    errors = [
        RecordError(index, _message(timestamp, rules, topic_partition))
        for index, timestamp in listed[:MESSAGES_MAX]
    ]
    message = f"{rejected} of {header.count} records were rejected: " + "; ".join(
        f"record {error.batch_index}: {error.message}" for error in errors[:_DESCRIBED_MAX]
    )
    if rejected > _DESCRIBED_MAX:
        message += f"; and {rejected - _DESCRIBED_MAX} more"
    errors += [RecordError(index, None) for index, _ in listed[MESSAGES_MAX:]]
    code = ErrorCode.INVALID_TIMESTAMP if untimely else ErrorCode.INVALID_RECORD
    raise RecordsRejected(code, message, errors)


def _message(timestamp: int | None, rules: RecordRules, topic_partition: TopicPartition) -> str:
    if timestamp is None:
        return f"the record has no key, and the topic of {topic_partition} is compacted"
    if timestamp > rules.latest_ms:
        return (
            f"timestamp {timestamp} is later than {rules.latest_ms}, the latest that"
            f" {topic_partition} accepts now"
        )
    return (
        f"timestamp {timestamp} is earlier than {rules.earliest_ms}, the earliest that"
        f" {topic_partition} accepts now"
    )
