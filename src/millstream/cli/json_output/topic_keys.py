"""The JSON output of `millstream topic`, `produce` and `consume`."""

from __future__ import annotations

from typing import Final

from millstream.cli.json_output.form import JsonOutput, lines, one, rows

RESULT: Final = {
    "result": "What was done, or `failed`.",
    "error?": "Why it failed.",
}
MESSAGE: Final = {
    "topic": "The topic.",
    "partition": "The partition.",
    "offset": "The offset.",
    "timestamp": "The timestamp in milliseconds since the epoch.",
    "key?": "The key as text, or null.",
    "key_base64?": "The key, if it is not UTF-8.",
    "value?": "The value as text, or null.",
    "value_base64?": "The value, if it is not UTF-8.",
    "headers": "The headers, in order.",
    "headers[].key": "The name of the header.",
    "headers[].value?": "The value as text, or null.",
    "headers[].value_base64?": "The value, if it is not UTF-8.",
}

TOPIC: Final[dict[str, JsonOutput]] = {
    "topic list": rows(
        {
            "topic": "The topic.",
            "partitions": "The number of partitions.",
            "replication_factor": "The number of replicas of each partition.",
            "without_leader": "The number of partitions without a leader.",
            "out_of_sync": "The number of partitions with a replica that is not in sync.",
        }
    ),
    "topic describe": rows(
        {
            "topic": "The topic.",
            "topic_id": "The id of the topic.",
            "internal": "Whether only brokers use the topic.",
            "partitions": "The partitions, by number.",
            "partitions[].partition": "The number of the partition.",
            "partitions[].leader": "The id of the leader, or null.",
            "partitions[].replicas": "The ids of the replicas. The first is the preferred leader.",
            "partitions[].isr": "The ids of the in-sync replicas.",
            "partitions[].elr": "The ids of the eligible leader replicas, or null if unknown.",
            "partitions[].start_offset": "The first offset, or null without a leader.",
            "partitions[].end_offset": "The next offset, or null without a leader.",
            "configs": "The configs by name. With --all-configs also the defaults.",
            "configs{}.value": "The value.",
            "configs{}.source": "Where the value is set.",
        }
    ),
    "topic create": rows({"topic": "The topic.", **RESULT}),
    "topic alter": one(
        {
            "topic": "The topic.",
            "result": "`altered`.",
            "changes": "A sentence for each change.",
        }
    ),
    "topic grow": one(
        {
            "topic": "The topic.",
            "partitions": "The number of partitions before.",
            "new_partitions": "The new number of partitions.",
            "unread": "With --keep-order and --dry-run: the partitions that groups still read.",
            "unread[].group": "The group.",
            "unread[].partition": "The partition.",
            "unread[].committed_offset": "The committed offset, or null.",
            "unread[].end_offset": "The end offset, or null without a leader.",
            "unread[].lag": "The number of unread records, or null.",
            "result": "`grown`, or `would be grown`.",
        }
    ),
    "topic move": rows(
        {
            "topic": "The topic.",
            "partition": "The partition.",
            "replicas": "The ids of the replicas before. The first is the preferred leader.",
            "new_replicas": "The ids of the new replicas.",
            **RESULT,
        }
    ),
    "topic delete-records": one(
        {
            "topic": "The topic.",
            "partitions": "The partitions.",
            "partitions[].partition": "The number of the partition.",
            "partitions[].start_offset": "The first offset before.",
            "partitions[].end_offset": "The next offset.",
            "partitions[].new_start_offset": "The new first offset.",
            "partitions[].offsets": "The number of deleted offsets.",
            "partitions[].result": "What was done, or `failed`.",
            "partitions[].error?": "Why it failed.",
        }
    ),
    "topic delete": rows({"topic": "The topic.", **RESULT}),
    "topic hot": one(
        {
            "topic": "The topic.",
            "records": "The number of offsets in the log.",
            "sample": "The sample in which keys are counted.",
            "sample.records": "The number of records in the sample.",
            "sample.share_error": "The largest error of a key's share.",
            "sample.share_without_key": "The share of records without a key.",
            "sample.complete": "Whether the whole sample was read in time.",
            "partitions": "The partitions, the largest first.",
            "partitions[].partition": "The number of the partition.",
            "partitions[].records": "The number of offsets in its log.",
            "partitions[].share": "Its share of the topic.",
            "partitions[].ratio": "Its size relative to an even distribution.",
            "partitions[].hot": "Whether it is much larger than the others.",
            "keys": "The most frequent keys.",
            "keys[].key?": "The key as text, or null.",
            "keys[].key_base64?": "The key, if it is not UTF-8.",
            "keys[].share_min": "The lower bound of its share.",
            "keys[].share_max": "The upper bound of its share.",
            "keys[].partitions": "The partitions in which it was seen.",
            "keys[].hot": "Whether its share reaches --threshold.",
        }
    ),
    "produce": one(
        {
            "topic": "The topic.",
            "acknowledged": "The number of acknowledged messages.",
            "failed": "The number of failed messages.",
            "bytes": "The bytes of the acknowledged messages.",
            "seconds": "The time from the first message to the last acknowledgement.",
            "last_offsets": "The last offset of each partition, by partition.",
        }
    ),
    "consume": lines(MESSAGE),
}
