"""A driver for `test_standalone.py`: copies a topic with a stream, once up to now.

    python standalone_program.py MASTER SERVERS SOURCE TARGET CHECKPOINT

It is what a user writes, with only the master's address given.
"""

from __future__ import annotations

import sys

from millstream.spark.session import spark_session


def main() -> None:
    master, servers, source, target, checkpoint = sys.argv[1:]
    # Wait for both workers: else the first would do everything before the other is there.
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
