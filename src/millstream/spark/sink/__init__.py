"""The Spark sink: writes DataFrames to topics, exactly once by default.

This package owns options, encoding, sending, transactions and the commit of a batch. Connections,
retries and leaders belong to `millstream.protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from millstream.spark.sink.input_column import plan_columns
from millstream.spark.sink.sink_options import sink_options
from millstream.spark.sink.topic_writer import TopicBatchWriter, TopicStreamWriter

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceWriter:
    """Return the writer of `df.write`. Raises OptionError."""
    chosen = sink_options(options)
    return TopicBatchWriter(chosen, plan_columns(schema, chosen.topic), overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer of `df.writeStream`. Raises OptionError."""
    chosen = sink_options(options)
    return TopicStreamWriter(chosen, plan_columns(schema, chosen.topic), overwrite)
