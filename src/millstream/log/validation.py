"""Which produced batches a leader looks into, and the rules that it checks there.

A batch stays opaque where its topic asks nothing of single records, or where the header alone
tells that all of them are good:

    topic                                         what is checked
    compacted                                     each record (key, timestamp)
    CreateTime, message.timestamp.before.max.ms   each record: the header has the timestamp of the
    set                                           first record, which need not be the earliest
    CreateTime, only ...after.max.ms (default)    the header's latest timestamp; each record only
                                                  if that is too late, to name the bad ones
    LogAppendTime, not compacted                  nothing

Where records were looked at, their own timestamps count and not what the header says of them. A
header that says otherwise is corrected, as Kafka does. Kafka looks into every batch; here a batch
whose header hides a timestamp that is too late is accepted by a topic that leaves it opaque.
"""

from __future__ import annotations

from millstream.model.config import TopicConfig
from millstream.model.sentinel import INT64_MAX
from millstream.model.topic import TopicPartition
from millstream.records.batch import BatchHeader, stamp_max_timestamp
from millstream.records.validation import INT64_MIN, RecordRules, validate_records


def check_records(
    batch: memoryview,
    header: BatchHeader,
    config: TopicConfig,
    topic_partition: TopicPartition,
    now_ms: int,
    size_max: int,
) -> int:
    """Check the records of a batch that a client produced; return their latest timestamp.

    `size_max` bounds what they may decompress to. Raises INVALID_RECORD or INVALID_TIMESTAMP, as
    RecordsRejected where single records are bad.
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
