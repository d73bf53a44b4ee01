"""The files of a new project. Pure."""

from __future__ import annotations

from typing import Final

_SPEC: Final = """\
name: {name}
# Checkpoints of the flows. Delete the folder to start from the beginning.
storage: {storage}
database: default
configuration:
  millstream.bootstrap.servers: {servers}
  spark.sql.shuffle.partitions: "4"
libraries:
  - glob:
      include: transformations/**
"""

TRANSFORMATIONS: Final = '''\
"""Copies the topic `orders` to a table, to the topic `large-orders`, and to dead letters.

A value is JSON: {"order_id": "o1", "customer": "alice", "amount_cents": 1250}
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from millstream.spark.decode import decoded, split

spark = SparkSession.active()
SERVERS = spark.conf.get("millstream.bootstrap.servers")
ORDER = "order_id STRING NOT NULL, customer STRING NOT NULL, amount_cents BIGINT NOT NULL"
#: The consumer of the dead letters, for `millstream dlq list --group`.
GROUP = "orders-pipeline"


def decoded_orders() -> DataFrame:
    """Return all records of the topic, with a column for each field and one for the error."""
    records = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return decoded(records, ORDER)


@dp.table(comment="Orders as received")
def orders() -> DataFrame:
    return split(decoded_orders(), group_id=GROUP).valid.select(
        "order_id", "customer", "amount_cents", f.col("timestamp").alias("received_at")
    )


dp.create_sink(
    "large_orders", "millstream", {"kafka.bootstrap.servers": SERVERS, "topic": "large-orders"}
)


@dp.append_flow(target="large_orders", name="to_large_orders")
def to_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("amount_cents >= 100000")
    return large.select(
        f.col("customer").cast("binary").alias("key"),
        f.to_json(f.struct("order_id", "amount_cents")).cast("binary").alias("value"),
    )


# A dead letter goes to the topic of its record plus `.dlq`: `millstream dlq list orders`.
dp.create_sink("dead_letters", "millstream", {"kafka.bootstrap.servers": SERVERS})


@dp.append_flow(target="dead_letters", name="to_dead_letters")
def to_dead_letters() -> DataFrame:
    return split(decoded_orders(), group_id=GROUP).dead_letters
'''

VIEW: Final = """\
CREATE MATERIALIZED VIEW revenue COMMENT 'Orders by customer' AS
SELECT customer, count(*) AS orders, sum(amount_cents) AS amount_cents
FROM orders
GROUP BY customer
"""

IGNORED: Final = """\
storage/
warehouse/
metastore/
metastore.log
__pycache__/
"""


def spec(name: str, storage: str, servers: str) -> str:
    return _SPEC.format(name=name, storage=storage, servers=servers)
