"""A driver of its own: copies a topic to another one through Spark until it is killed.

    python -m spark.sink_query JSON

The argument is a `Plan`. A query that fails is started again with its checkpoint, as a supervisor
would do it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millstream.spark.session import spark_session

CONNECTOR = Path(__file__).parent.parent.parent / ".cache" / "spark-connector"
#: Executors are processes of their own, as on a cluster.
EXECUTORS = "local-cluster[2,1,512]"
_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    # However often they are killed.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True)
class Plan:
    """What to copy, and how."""

    servers: str
    checkpoint: str
    source: str = "in"
    target: str = "out"
    #: The format of the sink.
    sink: str = "millstream"
    rows_per_batch: int = 200
    master: str = EXECUTORS
    #: Whether rows go through a shuffle before they are written.
    is_shuffled: bool = False
    #: While this file exists, the first attempt at a batch's first task waits.
    brake: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        return json.dumps(asdict(self))


def run(spark: SparkSession, plan: Plan) -> None:
    """Until the query fails."""
    frame = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", plan.servers)
        .option("subscribe", plan.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan.rows_per_batch)
        .load()
        .select("key", "value")
    )
    query = (
        _shaped(frame, plan)
        .writeStream.format(plan.sink)
        .option("kafka.bootstrap.servers", plan.servers)
        .option("topic", plan.target)
        .options(**plan.options)
        .option("checkpointLocation", plan.checkpoint)
        .start()
    )
    try:
        query.awaitTermination()
    except PySparkException as error:
        sys.stderr.write(f"the query failed: {error}"[:500] + "\n")


def _shaped(frame: DataFrame, plan: Plan) -> DataFrame:
    if plan.is_shuffled:
        frame = frame.repartition("key")
    if plan.brake is not None:
        brake = Path(plan.brake)

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from braked(batches, brake)

        frame = frame.mapInArrow(wait, frame.schema)
    return frame


def braked(batches: Iterator[pa.RecordBatch], brake: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a task, which has come to its sink before it has to wait."""
    from harness.broker_process import wait_until

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() > 0:
        brake.with_suffix(".again").touch()
    for batch in batches:
        yield batch
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            wait_until(lambda: not brake.exists(), "the brake to be released", 300)


def main(plan: Plan) -> None:
    config = _CONFIG | plan.config
    if plan.sink == "kafka":
        config["spark.jars"] = ",".join(map(str, CONNECTOR.glob("*.jar")))
    spark = spark_session("sink-query", master=plan.master, config=config)
    parent = os.getppid()
    while os.getppid() == parent:
        run(spark, plan)
    sys.exit("nobody waits for the copy any more")


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
