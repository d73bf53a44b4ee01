"""The driver of `test_standalone.py`: copies the present records of a topic with a stream.

    python standalone_program.py MASTER SERVERS SOURCE TARGET CHECKPOINT

A user would write the same program with only the master's address.
"""

from __future__ import annotations

import sys

from millstream.spark.session import spark_session


def main() -> None:
    master, servers, source, target, checkpoint = sys.argv[1:]
    # Wait for both workers; otherwise the first one would run all tasks.
    config = {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "100s",
        "spark.cores.max": "2",
    }
    spark = spark_session("standalone", master=master, config=config)
    stream = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        stream.select("key", "value")
        .writeStream.format("millstream")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
