"""The data pipeline on Spark: a source and an exactly-once sink, pipelines, and jobs."""
