"""A driver program: copies a topic to another one with Spark until it is killed.

    python -m spark.sink.copy_program JSON

The argument is a `Plan`. The program restarts a failed query with its checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.spark.session import spark_session

CONNECTOR = Path(__file__).parents[3] / ".cache" / "spark-connector"
#: Executors are separate processes, as on a cluster.
EXECUTORS = "local-cluster[2,1,512]"
_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    # Executors may be killed any number of times.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.shuffle.partitions": "4",
    # Rows reach the sink in small batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    "spark.buffer.size": "512",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True)
class Plan:
    """The topics to copy, and the settings of the query."""

    servers: str
    checkpoint: str
    source: str = "in"
    target: str = "out"
    #: The format of the sink.
    sink: str = "millstream"
    rows_per_batch: int = 400
    master: str = EXECUTORS
    #: Whether rows go through a shuffle before they are written.
    is_shuffled: bool = False
    #: The pause of a task after each Arrow batch, so that it can be killed in between.
    pause_seconds: float = 0.05
    #: While this file exists, the first attempt of a batch's first task waits.
    brake: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        return json.dumps(asdict(self))


def run(spark: SparkSession, plan: Plan) -> None:
    """Run the query until it fails. Exit if Spark can no longer find the source."""
    try:
        _start(spark, plan).awaitTermination()
    except (PySparkException, Py4JJavaError) as error:
        sys.stderr.write(f"the query failed: {error}"[:500] + "\n")
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            sys.exit("Spark searches for sources once, and the searching process was killed")


def _start(spark: SparkSession, plan: Plan) -> StreamingQuery:
    frame = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", plan.servers)
        .option("subscribe", plan.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan.rows_per_batch)
        .load()
        .select("key", "value")
    )
    return (
        _shaped(frame, plan)
        .writeStream.format(plan.sink)
        .option("kafka.bootstrap.servers", plan.servers)
        .option("topic", plan.target)
        .options(**plan.options)
        .option("checkpointLocation", plan.checkpoint)
        .start()
    )


def _shaped(frame: DataFrame, plan: Plan) -> DataFrame:
    if plan.is_shuffled:
        frame = frame.repartition("key")
    brake = None if plan.brake is None else Path(plan.brake)

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            time.sleep(plan.pause_seconds)
            if brake is not None:
                wait_for(brake)

    return frame.mapInArrow(slow, frame.schema)


def wait_for(brake: Path) -> None:
    """Wait in the first attempt of the first task. A later attempt creates a file."""
    from harness.process.broker_process import wait_until

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() > 0:
        brake.with_suffix(".again").touch()
    elif context.partitionId() == 0:
        wait_until(lambda: not brake.exists(), "the brake to be released", 300)


def main(plan: Plan) -> None:
    config = _CONFIG | plan.config
    if plan.sink == "kafka":
        config["spark.jars"] = ",".join(map(str, CONNECTOR.glob("*.jar")))
    spark = spark_session("sink-query", master=plan.master, config=config)
    parent = os.getppid()
    while os.getppid() == parent:
        run(spark, plan)
    sys.exit("the parent process has ended")


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
