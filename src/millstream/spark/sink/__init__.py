"""Writing DataFrames to topics: `df.write` and `df.writeStream.format("millstream")`.

`option.py` what is asked for · `column.py` rows as Arrow arrays · `encoding.py` rows into record
batches · `producer.py` batches to their partitions · `transaction.py` transactions' requests ·
`task.py` what one task does · `decision.py`, `ledger.py` which batches were decided · `commit.py`
what the driver does · `writer.py` the classes that Spark calls · `fault.py` steps for tests.
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
    """For `df.write`. Raises OptionError."""
    chosen = sink_options(options)
    return TopicBatchWriter(chosen, plan_columns(schema, chosen.topic), overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """For `df.writeStream`. Raises OptionError."""
    chosen = sink_options(options)
    return TopicStreamWriter(chosen, plan_columns(schema, chosen.topic), overwrite)
