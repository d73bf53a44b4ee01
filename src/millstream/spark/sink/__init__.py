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

from millstream.spark.sink.column import plan_columns
from millstream.spark.sink.option import sink_options
from millstream.spark.sink.writer import BatchWriter, StreamWriter

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceWriter:
    """For `df.write`. Raises OptionError."""
    chosen = sink_options(options)
    return BatchWriter(chosen, plan_columns(schema, chosen.topic), overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """For `df.writeStream`. Raises OptionError."""
    chosen = sink_options(options)
    return StreamWriter(chosen, plan_columns(schema, chosen.topic), overwrite)
