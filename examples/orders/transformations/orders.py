"""Copies the topic `orders` to tables, to the topic `revenue`, and to dead letters.

topic customers -> customers (newest value of each key) --.
topic orders -> checked -+-> orders (in time, once each) --+-> revenue -> topic revenue
                         +-> late_orders
                         '-> topic orders.dlq
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from millstream.spark.decode import decoded, split

spark = SparkSession.active()
SERVERS = spark.conf.get("millstream.bootstrap.servers")
ORDER = """
    order_id STRING NOT NULL, customer STRING NOT NULL, item STRING, count INT,
    amount_cents BIGINT NOT NULL, event_time_ms BIGINT NOT NULL
"""
GROUP = "orders-pipeline"
LATENESS = "10 minutes"
TO_TOPICS = {"kafka.bootstrap.servers": str(SERVERS)}


def checked() -> DataFrame:
    """Return all records of the topic, with the fields of the order, or with the error."""
    records = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = decoded(records, ORDER)
    unpaid = f.when(f.col("amount_cents") <= 0, f.lit("the amount is not positive"))
    return rows.withColumn("_error", f.coalesce("_error", unpaid))


def well_formed() -> DataFrame:
    """Return the valid orders, and whether each is in time.

    This depends only on the record's timestamp, not on the records that Spark reads together."""
    orders = split(checked(), group_id=GROUP).valid
    return orders.withColumn("event_time", f.timestamp_millis("event_time_ms")).withColumn(
        "in_time", f.col("timestamp") < f.col("event_time") + f.expr(f"INTERVAL {LATENESS}")
    )


@dp.materialized_view(comment="The newest value of each key of a compacted topic")
def customers() -> DataFrame:
    records = (
        spark.read.format("millstream")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "customers")
        .load()
    )
    rows = decoded(records, "country STRING, tier STRING", into="customer")
    newest = rows.groupBy("key").agg(f.max_by("customer", "offset").alias("newest"))
    return newest.select(f.col("key").cast("string").alias("customer"), "newest.*")


@dp.table(comment="Accepted orders, each once, with what is known of the customer")
def orders() -> DataFrame:
    accepted = (
        well_formed()
        .where("in_time")
        .withWatermark("event_time", LATENESS)
        .dropDuplicatesWithinWatermark(["order_id"])
        .select("order_id", "customer", "item", "count", "amount_cents", "event_time")
    )
    return accepted.join(spark.read.table("customers"), "customer", "left")


@dp.table(comment="Orders that came too late to count")
def late_orders() -> DataFrame:
    return well_formed().where("NOT in_time").select("order_id", "customer", "event_time")


dp.create_sink("revenue_topic", "millstream", TO_TOPICS | {"topic": "revenue"})


@dp.append_flow(target="revenue_topic", name="to_revenue_topic")
def to_revenue_topic() -> DataFrame:
    value = f.to_json(
        f.struct(f.unix_millis("window_start").alias("start_ms"), "orders", "revenue_cents")
    )
    return spark.readStream.table("revenue").select(
        f.col("country").cast("binary").alias("key"), value.cast("binary").alias("value")
    )


dp.create_sink("dead_letters", "millstream", TO_TOPICS)


@dp.append_flow(target="dead_letters", name="to_dead_letters")
def to_dead_letters() -> DataFrame:
    return split(checked(), group_id=GROUP).dead_letters
