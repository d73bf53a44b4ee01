"""Which produced batches a leader looks into, and the rules that it checks there.

A batch stays opaque if its topic has no rule for single records, or if the header alone shows that
all of them are valid:

    topic                                         what is checked
    compacted                                     each record (key, timestamp)
    CreateTime, message.timestamp.before.max.ms   each record: the header has the timestamp of the
    set                                           first record, which need not be the earliest
    CreateTime, only ...after.max.ms (default)    the header's latest timestamp; each record only
                                                  if that is too late, to name the bad ones
    LogAppendTime, not compacted                  nothing

Where records are checked, their own timestamps count, and a wrong header is corrected, as in Kafka.
Kafka looks into every batch. Here, a topic that leaves batches opaque accepts a batch whose header
hides a timestamp that is too late.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT64_MAX
from millstream.model.topic import TopicPartition
from millstream.records.batch import BatchHeader, CorruptBatch, stamp_max_timestamp
from millstream.records.control import read_marker
from millstream.records.validation import INT64_MIN, RecordRules, validate_records


def check_records(
    batch: memoryview,
    header: BatchHeader,
    config: TopicConfig,
    topic_partition: TopicPartition,
    now_ms: int,
    size_max: int,
) -> int:
    """Check the records of a produced batch. Returns their latest timestamp.

    `size_max` limits their decompressed size. Raises INVALID_RECORD or INVALID_TIMESTAMP, as
    RecordsRejected where single records are invalid.
    """
    is_compacted = "compact" in config.cleanup_policy
    if config.message_timestamp_type != "CreateTime":
        if is_compacted:
            rules = RecordRules(is_key_required=True)
            validate_records(batch, header, size_max, rules, topic_partition)
        return header.max_timestamp
    before_max_ms = config.message_timestamp_before_max_ms
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    if not is_compacted and before_max_ms == INT64_MAX and header.max_timestamp <= latest_ms:
        return header.max_timestamp
    rules = RecordRules(
        is_key_required=is_compacted,
        earliest_ms=INT64_MIN if before_max_ms == INT64_MAX else now_ms - before_max_ms,
        latest_ms=min(latest_ms, INT64_MAX),
    )
    max_timestamp = validate_records(batch, header, size_max, rules, topic_partition)
    if max_timestamp != header.max_timestamp:
        stamp_max_timestamp(batch, 0, max_timestamp)
    return max_timestamp


def check_follower_batches(
    data: memoryview,
    batches: Sequence[tuple[int, BatchHeader]],
    next_offset: int,
    topic_partition: TopicPartition,
) -> int:
    """Check a leader's batches before a follower appends them. Returns the offset after them.

    `batches` are (position in `data`, header). Raises CORRUPT_MESSAGE.
    """
    for position, header in batches:
        if header.base_offset < next_offset:
            raise CorruptBatch(
                f"offset {header.base_offset} from the leader of {topic_partition} is"
                f" below {next_offset}, the next offset here"
            )
        if header.is_control:
            read_marker(data, header, position)
        next_offset = header.next_offset
    return next_offset


def too_large(size: int, config: TopicConfig) -> BrokerError:
    """Return the error for a batch of `size` bytes, which is above the topic's limit."""
    return BrokerError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes exceeds max.message.bytes, {config.max_message_bytes}",
    )
