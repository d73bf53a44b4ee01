"""The JSON output of `millstream dlq`, `outbox`, `worker`, `job` and `pipeline`."""

from __future__ import annotations

from typing import Final

from millstream.cli.json_output.form import JsonOutput, one, rows

_LETTER: Final = {
    "letter": "The id of the letter: PARTITION:OFFSET in the dead-letter topic.",
    "timestamp": "When the message died, in milliseconds since the epoch.",
    "key?": "The key as text, or null.",
    "key_base64?": "The key, if it is not UTF-8.",
    "topic": "The original topic.",
    "partition": "The original partition.",
    "offset": "The original offset.",
    "original_timestamp": "The timestamp of the original message, or null.",
    "group": "The group that consumed the message, or null.",
    "attempts": "The number of attempts.",
    "error_type": "The type of the error.",
    "error_message": "The message of the error.",
    "replayed": "Whether the letter was replayed.",
}
_REPORT: Final = {
    "job": "The job.",
    "ok": "Whether the job found no problem and was not interrupted.",
    "dry_run": "Whether nothing was changed.",
    "outcome": "The result in one sentence.",
    "notes": "Sentences about the result.",
}
_ERRORS: Final = {
    "missing": "Records that are not in the output.",
    "duplicate": "Records that are in the output more than once.",
    "unexpected": "Records of the output that are not in the input.",
    "reordered": "Records that are in the output in another order.",
    "late": "Records that are in the output later than --late.",
}


def _optional(keys: dict[str, str]) -> dict[str, str]:
    return {f"{name}?": meaning for name, meaning in keys.items()}


def _table(name: str, meaning: str, columns: dict[str, str]) -> dict[str, str]:
    below = {f"{name}[].{column}": text for column, text in columns.items()}
    return {f"{name}?": meaning, **below}


def _groups(name: str, columns: dict[str, str]) -> dict[str, str]:
    shared = {
        "letters": "The number of letters.",
        "share": "Their share.",
        "first": "The time of the first letter.",
        "last": "The time of the last letter.",
    }
    return _table(name, f"The letters {name.replace('_', ' ')}.", columns | shared)


_OFFSETS: Final = {"topic": "The topic.", "partition": "The partition."}

DATA: Final[dict[str, JsonOutput]] = {
    "worker scale": one(
        {
            "group": "The group.",
            "workers": "The number of workers to run.",
            "needed": "The number of workers that the lag asks for now, without the cool-down.",
            "members": "The number of members of the group.",
            "lag": "Records that the group has not read.",
            "rate": "Messages a second that one worker processes, or null.",
            "arrival_rate": "Messages a second that arrive, or null.",
        }
    ),
    "dlq list": rows(_LETTER),
    "dlq show": one(
        {
            **_LETTER,
            "error_stack": "The stack trace, or null.",
            "headers": "The headers of the original message.",
            "headers[].key": "The name of the header.",
            "headers[].value?": "The value as text, or null.",
            "headers[].value_base64?": "The value, if it is not UTF-8.",
            "value?": "The value as text, or null.",
            "value_base64?": "The value, if it is not UTF-8.",
        }
    ),
    "dlq stats": one(
        {
            "topic": "The dead-letter topic.",
            "depth": "The number of letters that were not replayed.",
            "replayed": "The number of letters that were replayed.",
            "oldest_age_seconds": "The age of the oldest letter that was not replayed, or null.",
            "by_error": "The number of letters by type of error.",
            "by_topic": "The number of letters by original topic.",
            "by_group": "The number of letters by group.",
        }
    ),
    "dlq replay": one(
        {
            "topic": "The dead-letter topic.",
            "dry_run": "Whether nothing was sent.",
            "replayed": "The number of letters that were sent, or would be sent by a dry run.",
            "already_replayed": "The number of letters that were skipped.",
            "targets": "The number of letters by target topic.",
        }
    ),
    "dlq purge": one(
        {"topic": "The dead-letter topic.", "deleted": "The number of deleted letters."}
    ),
    "outbox init": one({"table": "The outbox table.", "result": "`created`."}),
    "outbox relay": one(
        {
            "sent": "The number of events sent by this run.",
            "rejected": "The number of events that the broker rejected in this run.",
            "undecided_shards": "Shards that need `millstream outbox settle`.",
        }
    ),
    "outbox status": rows(
        {
            "shard": "The number of the shard.",
            "name": "The name of the shard.",
            "pending": "The number of events to send.",
            "oldest_ms": "The time of the oldest pending event in milliseconds, or null.",
            "sent": "The number of events sent so far.",
            "batch": "The number of the last batch.",
            "claimed": "The number of events in the batch in progress.",
            "active": "Whether a relay has the shard.",
            "owner": "The relay, or null.",
            "error": "The last error, or null.",
            "rejected": "The number of rejected events.",
        }
    ),
    "outbox settle": one(
        {
            "shard": "The number of the shard.",
            "events": "The number of events in the batch.",
            "result": "`sent` or `unsent`.",
        }
    ),
    "outbox rejected": rows(
        {
            "id": "The id of the event.",
            "shard": "The number of the shard.",
            "topic": "The topic.",
            "partition": "The partition, or null.",
            "key?": "The key as text, or null.",
            "key_base64?": "The key, if it is not UTF-8.",
            "value?": "The value as text, or null.",
            "value_base64?": "The value, if it is not UTF-8.",
            "headers": "The headers as JSON text, or null.",
            "created_ms": "The time of the event in milliseconds since the epoch.",
            "rejected_ms": "The time of the rejection in milliseconds since the epoch.",
            "error": "Why the broker rejects the event.",
        }
    ),
    "outbox retry": one({"events": "The number of events.", "result": "`pending`."}),
    "outbox discard": one({"events": "The number of events.", "result": "`deleted`."}),
    "job archive": one(
        {
            **_REPORT,
            **_optional(
                {
                    "offsets": "Dry run: the number of offsets to archive.",
                    "records": "The number of records archived by this run.",
                    "batches": "The number of batches.",
                    "files": "The number of files.",
                    "files_compacted": "The number of files that were merged.",
                    "bytes": "The size of the files.",
                    "seconds": "The duration of the run.",
                }
            ),
            **_table(
                "partitions",
                "The partitions of the archive.",
                _OFFSETS
                | _optional(
                    {
                        "offsets": "Dry run: the number of offsets.",
                        "from_offset": "Dry run: the first offset.",
                        "to_offset": "Dry run: the offset after the last one.",
                        "new_offsets": "The number of offsets archived by this run.",
                        "first_offset": "The first archived offset.",
                        "next_offset": "The offset after the last archived one.",
                    }
                ),
            ),
        }
    ),
    "job snapshot": one(
        {
            **_REPORT,
            **_optional(
                {
                    "offsets": "Dry run: the number of offsets to read.",
                    "keys": "The number of keys in the table.",
                    "records": "The number of records that were read.",
                    "deletions": "The number of tombstones that were read.",
                    "records_without_key": "The number of records without a key.",
                    "seconds": "The duration of the run.",
                }
            ),
            **_table(
                "partitions",
                "The partitions that were read.",
                _OFFSETS
                | {
                    "new_offsets": "The number of offsets.",
                    "from_offset": "The first offset.",
                    "to_offset": "The offset after the last one.",
                },
            ),
        }
    ),
    "job replay": one(
        {
            **_REPORT,
            "records": "The number of records sent by this run, or to send by a dry run.",
            **_optional(
                {
                    "offsets": "Dry run: the number of offsets to read.",
                    "records_of_all_runs": "The number of records sent by all runs.",
                    "replay_id": "The id in the headers of sent records.",
                    "seconds": "The duration of the run.",
                }
            ),
            **_table(
                "partitions",
                "The partitions that are not complete.",
                _OFFSETS
                | _optional(
                    {
                        "records": "Dry run: the number of records.",
                        "next_offset": "The next offset to read.",
                        "end_offset": "The offset after the last one.",
                    }
                ),
            ),
        }
    ),
    "job profile": one(
        {
            **_REPORT,
            **_optional(
                {
                    "records": "The number of records.",
                    "bytes": "The size of keys and values.",
                    "records_per_second": "The average rate.",
                    "bytes_per_second": "The average rate in bytes.",
                    "peak_records_per_second": "The highest rate.",
                    "peak_bytes_per_second": "The highest rate in bytes.",
                    "partitions": "The number of partitions.",
                    "partitions_needed": "The recommended number of partitions.",
                    "record_bytes_p50": "The median size of a record.",
                    "record_bytes_p90": "The 90th percentile of sizes.",
                    "record_bytes_p99": "The 99th percentile of sizes.",
                    "record_bytes_max": "The size of the largest record.",
                    "null_keys": "The number of records without a key.",
                    "null_values": "The number of tombstones.",
                    "keys": "The number of distinct keys.",
                    "duplicates": "The number of records with the same key and value.",
                    "out_of_order": "The number of records older than their predecessor.",
                    "out_of_order_seconds_max": "The largest difference to a predecessor.",
                }
            ),
            **_table(
                "largest_partitions",
                "The partitions with the most records.",
                {
                    "partition": "The partition.",
                    "records": "The number of records.",
                    "bytes": "The size.",
                    "share": "The share of the topic's records.",
                    "out_of_order": "The number of records older than their predecessor.",
                },
            ),
            **_table(
                "largest_keys",
                "The keys with the most records.",
                {
                    "key": "The key.",
                    "records": "The number of records.",
                    "bytes": "The size.",
                    "share": "The share of the topic's records.",
                    "hot": "Whether the key has too large a share.",
                },
            ),
            **_table(
                "compression",
                "The codecs.",
                {"codec": "The codec.", "ratio": "Compressed size relative to the original."},
            ),
        }
    ),
    "job audit": one(
        {
            **_REPORT,
            **_optional(
                {
                    "input_records": "The number of input records.",
                    "expected": "The number of records that must be in the output.",
                    "output_records": "The number of output records.",
                    "matched": "The number of records that are in the output once.",
                    "without_identity": "The number of records without an identity.",
                    **_ERRORS,
                }
            ),
            **_table(
                "plan",
                "Dry run: what is compared.",
                {
                    "what": "A topic or table.",
                    "kind": "Its kind.",
                    "identity": "The identity of its records.",
                    "offsets": "The number of offsets, or null for a table.",
                },
            ),
            **_table("by_key", "The errors by key.", {"key": "The key.", **_ERRORS}),
            **_table("by_time", "The errors by time.", {"time": "The time.", **_ERRORS}),
            **_table(
                "examples",
                "Records with errors.",
                {
                    "identity": "The identity.",
                    "key": "The key.",
                    "input": "The position in the input, or null.",
                    "output": "The position in the output, or null.",
                    **_ERRORS,
                },
            ),
        }
    ),
    "job deadletters": one(
        {
            **_REPORT,
            **_optional(
                {
                    "offsets": "Dry run: the number of offsets to read.",
                    "letters": "The number of letters.",
                }
            ),
            **_groups("by_error", {"error": "The type.", "message": "The message."}),
            **_groups("by_source", {"source": "The original topic.", "consumer": "The group."}),
            **_groups("by_time", {"time": "The time."}),
            **_groups("by_schema", {"schema": "The schema.", "error": "The type of the error."}),
            **_table(
                "samples",
                "The newest letters of each error.",
                {
                    "letter": "The id of the letter.",
                    "error": "The type of the error.",
                    "message": "The message of the error.",
                    "key": "The key.",
                    "value": "The value.",
                },
            ),
        }
    ),
    "pipeline init": one({"pipeline": "The name.", "files": "The files that were written."}),
    "pipeline validate": one({"pipeline": "The name.", "result": "`valid`."}),
    "pipeline run": one(
        {
            "updates": "The number of completed updates.",
            "flows": "The flows.",
            "flows[].name": "The name of the flow.",
            "flows[].state": "Its state.",
            "flows[].rows": "The number of rows.",
            "flows[].batches": "The number of batches.",
            "flows[].rows_per_s": "Rows per second, or null.",
            "flows[].batch_ms": "The duration of the last batch in milliseconds, or null.",
            "flows[].lag": "The number of unread records, or null.",
            "flows[].message": "Why the flow failed, or an empty text.",
            "flows[].error": "The type of the error, or an empty text.",
        }
    ),
}
