"""The JSON output of `millstream group` and `millstream txn`."""

from __future__ import annotations

from typing import Final

from millstream.cli.json_output.form import JsonOutput, one, rows
from millstream.cli.json_output.topic_keys import RESULT

_HANGING: Final = {
    "topic?": "With --hanging: the topic.",
    "partition?": "With --hanging: the partition.",
    "producer_epoch?": "With --hanging: the epoch of the producer.",
    "coordinator_epoch?": "With --hanging: the epoch of the coordinator.",
    "start_offset?": "With --hanging: the first offset of the transaction.",
    "last_timestamp?": "With --hanging: the time of the last write, in milliseconds.",
}

GROUP: Final[dict[str, JsonOutput]] = {
    "group list": rows(
        {"group": "The group.", "state": "Its state.", "type": "`Classic` or `Consumer`."}
    ),
    "group members": rows(
        {
            "member_id": "The id of the member.",
            "instance_id": "The static id of the member, or null.",
            "client_id": "The client id.",
            "host": "The address of the member.",
            "assignment": "The partitions of the member, by topic.",
            "target_assignment?": "The partitions that it gets next, by topic.",
        }
    ),
    "group describe": one(
        {
            "group": "The group.",
            "state": "Its state.",
            "type": "`Classic` or `Consumer`.",
            "assignor": "The partition assignor, or null.",
            "coordinator": "The id of the coordinating broker, or null.",
            "members": "The number of members.",
            "lag": "The number of unread records.",
            "lag_seconds": "The age of the oldest unread record, or null.",
            "headroom_seconds": "The time until retention deletes an unread record, or null.",
            "unknown_partitions": "The number of partitions with an unknown lag.",
            "limited_by_size": "Topics whose retention by size may delete records sooner.",
            "partitions": "The partitions with a committed offset or a member.",
            "partitions[].topic": "The topic.",
            "partitions[].partition": "The partition.",
            "partitions[].committed_offset": "The committed offset, or null.",
            "partitions[].end_offset": "The end offset, or null without a leader.",
            "partitions[].lag": "The number of unread records, or null.",
            "partitions[].lag_seconds": "The age of the oldest unread record, or null.",
            "partitions[].headroom_seconds": "The time until retention deletes an unread record.",
            "partitions[].member_id": "The member that reads it, or null.",
            "partitions[].client_id": "The client id of that member, or null.",
            "partitions[].host": "The address of that member, or null.",
        }
    ),
    "group reset-offsets": one(
        {
            "group": "The group.",
            "executed": "Whether the offsets were changed; false for a preview.",
            "partitions": "The partitions.",
            "partitions[].topic": "The topic.",
            "partitions[].partition": "The partition.",
            "partitions[].current_offset": "The committed offset, or null.",
            "partitions[].new_offset": "The new offset.",
            "partitions[].difference": "The number of records that will be skipped or read again.",
            "partitions[].result": "What was done.",
        }
    ),
    "group delete": rows({"group": "The group.", **RESULT}),
    "txn list": rows(
        {
            "transactional_id?": "The transactional id.",
            "coordinator?": "The id of the coordinating broker.",
            "producer_id": "The producer id.",
            "state?": "The state.",
            **_HANGING,
        }
    ),
    "txn describe": one(
        {
            "transactional_id": "The transactional id.",
            "coordinator": "The id of the coordinating broker.",
            "producer_id": "The producer id.",
            "producer_epoch": "The epoch of the producer.",
            "state": "The state.",
            "timeout_ms": "The timeout of the transaction in milliseconds.",
            "start_time": "When the transaction started, as ISO 8601 in UTC, or null.",
            "partitions": "The partitions in the transaction.",
        }
    ),
    "txn abort": rows(
        {
            "transactional_id?": "The transactional id.",
            "producer_id?": "With --hanging: the producer id.",
            "result": "`fenced` or `aborted`.",
            **_HANGING,
        }
    ),
}
