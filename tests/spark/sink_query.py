"""A driver of its own: copies a topic to another one through Spark until all of it is there.

    python -m spark.sink_query FORMAT SERVERS SOURCE TARGET CHECKPOINT

A query that fails is started again with its checkpoint, as a supervisor would do it. The process
ends when a query has come to the end of its source.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.spark.session import spark_session

CONNECTOR = Path(__file__).parent.parent.parent / ".cache" / "spark-connector"
#: So that there are many batches to be killed in.
ROWS_PER_BATCH = 400


def copy(
    spark: SparkSession, sink: str, servers: str, source: str, target: str, checkpoint: str
) -> bool:
    """Whether the query came to its end."""
    frame = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
    )
    query = (
        frame.select("key", "value")
        .writeStream.format(sink)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except PySparkException as error:
        sys.stderr.write(f"the query failed: {error}"[:500] + "\n")
        return False
    return True


def main(sink: str, servers: str, source: str, target: str, checkpoint: str) -> None:
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    if sink == "kafka":
        config["spark.jars"] = ",".join(map(str, CONNECTOR.glob("*.jar")))
    spark = spark_session("sink-query", master="local[2,4]", config=config)
    parent = os.getppid()
    while not copy(spark, sink, servers, source, target, checkpoint):
        if os.getppid() != parent:
            sys.exit("nobody waits for the copy any more")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
