"""A stream on Spark, from topic to topic, exactly once.

python -m examples.spark_stream
"""

from __future__ import annotations

import sys

from millstream import JsonSerializer, Producer
from millstream.spark import spark_session


def main(servers: str = "127.0.0.1:9092", checkpoint: str = "checkpoints/payments") -> None:
    """Copy large payments to a topic of their own. Start it again: nothing is copied twice."""
    with Producer(servers, value_serializer=JsonSerializer()) as producer:
        for number in range(100):
            customer = f"c{number % 3}"
            producer.send("payments", {"customer": customer, "cents": number}, key=customer)

    spark = spark_session("payments")
    payments = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "from_json(cast(value as string), 'customer STRING, cents LONG') AS p")
    )
    query = (
        payments.where("p.cents >= 90")
        .selectExpr("key", "to_json(p) AS value")
        .writeStream.format("millstream")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", "large-payments")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("written to the topic large-payments")


if __name__ == "__main__":
    main(*sys.argv[1:])
