"""The `millstream pipeline` commands, which run Spark Declarative Pipelines.

It owns options and the view of flows; `spark.pipeline` owns projects and updates.
"""
