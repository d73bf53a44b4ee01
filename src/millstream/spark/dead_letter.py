"""Turns failed rows into dead letters for the sink, with the headers that workers write.

`millstream dlq list|show|replay` and `millstream job deadletters` read these dead letters too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.client.worker import header as names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR_TYPE: Final = "DecodeError"
_HEADERS: Final = "array<struct<key: string, value: binary>>"


def dead_letters(
    rows: DataFrame,
    *,
    group_id: str,
    headers: bool = False,
    error_column: str = "_error",
    error_type: str = ERROR_TYPE,
) -> DataFrame:
    """Return one dead letter per row, for the topic `<topic>.dlq`.

    The rows have the columns of the source, and the error in `error_column`. With `headers`, they
    have the records' headers too, and the dead letters keep them."""
    from pyspark.sql import functions as f

    carried = _headers(group_id, f.col(error_column), error_type)
    if headers:
        own = f.filter("headers", lambda each: ~each["key"].startswith(names.PREFIX))
        carried = f.concat(f.coalesce(own, f.array().cast(_HEADERS)), carried)
    return rows.select(
        f.concat(f.col("topic"), f.lit(names.dead_letter_topic(""))).alias("topic"),
        "key",
        "value",
        carried.alias("headers"),
    )


def _headers(group: str, error: Column, error_type: str) -> Column:
    from pyspark.sql import functions as f

    texts = {
        names.TOPIC: f.col("topic"),
        names.PARTITION: f.col("partition"),
        names.OFFSET: f.col("offset"),
        names.TIMESTAMP: f.unix_millis("timestamp"),
        names.GROUP: f.lit(group),
        names.ATTEMPTS: f.lit(1),
        names.DEAD_TIMESTAMP: f.unix_millis(f.current_timestamp()),
        names.ERROR_TYPE: f.lit(error_type),
        names.ERROR_MESSAGE: error.substr(1, names.MESSAGE_CHARACTERS_MAX),
        names.ERROR_STACK: f.lit(""),
    }
    pairs = [
        f.struct(f.lit(name).alias("key"), text.cast("string").cast("binary").alias("value"))
        for name, text in texts.items()
    ]
    return f.array(*pairs).cast(_HEADERS)
